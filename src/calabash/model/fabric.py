"""Fabrics for RDMA between cards: what of a card is where on them, who uses the card, and what is known of both."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from calabash.model.device import DeviceUuid


class FabricPlane(StrEnum):
    """INFINIBAND: partitions by P_Key. ROCE: virtual functions in a routing table of their own (VRF). NVLINK: partitions of
    the switches between cards."""

    INFINIBAND = "infiniband"
    ROCE = "roce"
    NVLINK = "nvlink"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class FabricEndpoint:
    """Where a card is on a plane: ``address`` is the GUID of the InfiniBand port beside it (16 hexadecimal digits), a virtual
    function ``NODE/INTERFACE/vfNUMBER``, or the card's own name on NVLink."""

    plane: FabricPlane
    device: DeviceUuid
    address: str


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class FabricUse:
    """A tenant has a slice of a card, or all of it."""

    device: DeviceUuid
    tenant: str


class FabricState(StrEnum):
    """Of a card on a plane.

    CLEAR: in nobody's partition. MEMBER: in that of the tenant that has it. JOINING: to be in one and not there yet.
    LEAVING: in one that it is not to be in. SHARED: several tenants have it, so it is in none. NO_TENANT: whoever has it is
    of no tenant, so it is in none. EXPOSED: somebody else's partition lets it talk to strangers. UNDIVIDED: nothing divides
    the plane. UNKNOWN: the fabric's manager does not say.
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
    """What is known of a card on a plane: ``standing`` are the tenants in whose partitions it was seen, None: not known.

    ``number`` is that of the partition of the tenant that has it, 0 none; ``message`` says what hinders, "" nothing.
    """

    plane: FabricPlane
    device: DeviceUuid
    state: FabricState
    standing: tuple[str, ...] | None
    tenant: str = ""
    number: int = 0
    message: str = ""
