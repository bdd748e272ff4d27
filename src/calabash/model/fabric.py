"""RDMA fabrics between devices: endpoints of devices, tenants that use the devices, and the state of the isolation."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from calabash.model.device import DeviceUuid


class FabricPlane(StrEnum):
    """Kinds of fabrics, by the way in which they isolate tenants.

    INFINIBAND: partitions by P_Key. ROCE: virtual functions in a separate routing table (VRF). NVLINK: partitions of the
    NVLink switches.
    """

    INFINIBAND = "infiniband"
    ROCE = "roce"
    NVLINK = "nvlink"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class FabricEndpoint:
    """Endpoint of a device on a fabric.

    ``address`` depends on the plane: the GUID of the nearest InfiniBand port (16 hexadecimal digits), a virtual function
    ``NODE/INTERFACE/vfNUMBER``, or the name of the device on NVLink.
    """

    plane: FabricPlane
    device: DeviceUuid
    address: str


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class FabricUse:
    """Use of a device by a tenant that has a slice of it or all of it."""

    device: DeviceUuid
    tenant: str


class FabricState(StrEnum):
    """State of the isolation of a device on a fabric.

    CLEAR: the device is in no partition.
    MEMBER: it is in the partition of the tenant that uses it.
    JOINING: it is being added to the partition of its tenant.
    LEAVING: it is in a partition that it must leave.
    SHARED: several tenants use it, so it is in no partition.
    NO_TENANT: its users belong to no tenant, so it is in no partition.
    EXPOSED: a partition that the product does not manage connects it to devices of others.
    UNDIVIDED: the fabric has no partitions.
    UNKNOWN: the manager of the fabric does not answer.
    """

    CLEAR = "clear"
    MEMBER = "member"
    JOINING = "joining"
    LEAVING = "leaving"
    SHARED = "shared"
    NO_TENANT = "no_tenant"
    EXPOSED = "exposed"
    UNDIVIDED = "undivided"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricCondition:
    """Observed state of a device on a fabric.

    Args:
        standing: the tenants in whose partitions the device was found; None: unknown.
        tenant: the tenant that uses the device; "" if there is none or several.
        number: the partition number of that tenant; 0 for none.
        message: the obstacle to the desired state; "" for none.
    """

    plane: FabricPlane
    device: DeviceUuid
    state: FabricState
    standing: tuple[str, ...] | None
    tenant: str = ""
    number: int = 0
    message: str = ""
