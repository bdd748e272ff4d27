"""RDMA fabrics: message types and routes for device uses and for the observed state of devices on fabrics."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from calabash.api import endpoints
from calabash.api.replies import Reply
from calabash.api.route import Route
from calabash.model.fabric import FabricPlane, FabricState

CARDS_MAX = 4096

Tenant = Annotated[str, Meta(max_length=256)]
Moment = Annotated[str, Meta(max_length=64, description="ID of the pool process; it changes at each start")]
Number = Annotated[int, Meta(ge=1, lt=1 << 53)]


class FabricUseView(Reply, kw_only=True, frozen=True):
    """Use of a device by a tenant that has a slice of it or all of it."""

    device: str
    tenant: str


class FabricUses(Reply, kw_only=True, frozen=True):
    """Devices and the tenants that use them. ``pool`` and ``number`` identify the version of the list."""

    pool: str
    number: int
    uses: list[FabricUseView]


class FabricCardReport(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Observed state of a device on a fabric.

    ``standing``: tenants in whose partitions the device is; null: unknown.
    """

    plane: FabricPlane
    device: Annotated[str, Meta(min_length=1, max_length=96)]
    state: FabricState
    standing: Annotated[list[Tenant], Meta(max_length=64)] | None
    tenant: Tenant = ""
    number: Annotated[int, Meta(ge=0, lt=1 << 32)] = 0
    message: Annotated[str, Meta(max_length=500)] = ""


class FabricReport(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Observed state of all devices on fabrics, after partitions were configured for a version of the list of uses."""

    pool: Moment
    number: Number
    cards: Annotated[list[FabricCardReport], Meta(max_length=CARDS_MAX)]


class FabricCardView(Reply, kw_only=True, frozen=True):
    """Last reported state of a device on a fabric.

    ``number``: partition of the tenant that uses the device; 0 for none.
    """

    plane: FabricPlane
    device: str
    state: FabricState
    standing: list[str] | None
    tenant: str
    number: int
    message: str


class FabricList(Reply, kw_only=True, frozen=True):
    """Last reported state of all devices on fabrics.

    ``told_at``: time of the last report; 0: no report since the start of the pool. ``hold``: devices are withheld until their
    state is known.
    """

    items: list[FabricCardView]
    hold: bool
    told_at: float


SHOW_FABRIC = Route(
    endpoint=endpoints.SHOW_FABRIC,
    summary="List devices on RDMA fabrics and their partitions",
    reply=FabricList,
    administrators=True,
)
LIST_FABRIC_USES = Route(
    endpoint=endpoints.LIST_FABRIC_USES,
    summary="List the tenants that use each device, for the fabric controller",
    reply=FabricUses,
    administrators=True,
)
REPORT_FABRIC_STATUS = Route(
    endpoint=endpoints.REPORT_FABRIC_STATUS,
    summary="Report the observed state of the fabrics",
    reply=FabricList,
    body=FabricReport,
    administrators=True,
    note="409 if the report is for another pool process",
)

FABRIC: tuple[Route[Any], ...] = (
    SHOW_FABRIC,
    LIST_FABRIC_USES,
    REPORT_FABRIC_STATUS,
)
