"""Shapes and routes of fabrics for RDMA: who has which card, and what was seen of it on its fabrics."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from calabash.api.replies import Reply
from calabash.api.route import Route
from calabash.model.fabric import FabricPlane, FabricState

PATH = "/v1/fabric"
CARDS_MAX = 4096

Tenant = Annotated[str, Meta(max_length=256)]
Moment = Annotated[str, Meta(max_length=64, description="which process of the pool; another word after each start")]
Number = Annotated[int, Meta(ge=1, lt=1 << 53)]


class FabricUseView(Reply, kw_only=True, frozen=True):
    """A tenant that has a slice of a card, or all of it."""

    device: str
    tenant: str


class FabricUses(Reply, kw_only=True, frozen=True):
    """Who has which card; ``pool`` and ``number`` say which moment that was."""

    pool: str
    number: int
    uses: list[FabricUseView]


class FabricCardReport(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """What was seen of a card on a plane. ``standing``: tenants in whose partitions it is; null: not known."""

    plane: FabricPlane
    device: Annotated[str, Meta(min_length=1, max_length=96)]
    state: FabricState
    standing: Annotated[list[Tenant], Meta(max_length=64)] | None
    tenant: Tenant = ""
    number: Annotated[int, Meta(ge=0, lt=1 << 32)] = 0
    message: Annotated[str, Meta(max_length=500)] = ""


class FabricReport(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """What was seen of all cards that are on a fabric, after partitions were made as of that moment."""

    pool: Moment
    number: Number
    cards: Annotated[list[FabricCardReport], Meta(max_length=CARDS_MAX)]


class FabricCardView(Reply, kw_only=True, frozen=True):
    """The same, as it was told last. ``number``: of the partition of the tenant that has the card, 0 none."""

    plane: FabricPlane
    device: str
    state: FabricState
    standing: list[str] | None
    tenant: str
    number: int
    message: str


class FabricList(Reply, kw_only=True, frozen=True):
    """``told_at``: when, 0 never, since the pool began. ``hold``: whether cards wait for it."""

    items: list[FabricCardView]
    hold: bool
    told_at: float


FABRIC = (
    Route(
        method="GET",
        path=PATH,
        summary="cards on fabrics for RDMA, and in whose partition each is",
        reply=FabricList,
        administrators=True,
    ),
    Route(
        method="GET",
        path=f"{PATH}/uses",
        summary="who has which card, for the program that makes partitions",
        reply=FabricUses,
        administrators=True,
    ),
    Route(
        method="PUT",
        path=f"{PATH}/status",
        summary="says what was seen on the fabrics",
        reply=FabricList,
        body=FabricReport,
        administrators=True,
        note="409 for a moment that is not of this process",
    ),
)
