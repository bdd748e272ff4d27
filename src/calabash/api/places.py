"""Ports of tenant networks at which servers of the pool's machine listen ("places"): message types and routes."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from calabash.api import endpoints
from calabash.api.networks import Path
from calabash.api.replies import Named, Reply
from calabash.api.route import Route
from calabash.model.request import KEEP_S_MAX

_LOCAL = "only for processes of the pool's machine"


class PlaceOrder(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Request to hold a port for a server. The holder repeats the request to keep the port."""

    port: Path
    holder: Annotated[str, Meta(min_length=1, max_length=256, description="name of the holder, shown to other users")]
    keep_s: Annotated[
        float,
        Meta(ge=1, le=KEEP_S_MAX, description="seconds without a repeated request after which the port is given back"),
    ]


class PlaceName(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Query parameters that select a port."""

    port: Path


class PlaceView(Reply, kw_only=True, frozen=True):
    """Port that a server holds. ``namespace`` is the file of the network namespace in which the server listens."""

    port: str
    tenant: str
    holder: str
    keep_s: float
    addresses: list[str]
    namespace: str


class PlaceList(Reply, kw_only=True, frozen=True):
    items: list[PlaceView]


LIST_SERVER_PORTS = Route(
    endpoint=endpoints.LIST_SERVER_PORTS,
    summary="List ports at which servers of this machine listen",
    reply=PlaceList,
    administrators=True,
)
HOLD_SERVER_PORT = Route(
    endpoint=endpoints.HOLD_SERVER_PORT,
    summary="Hold a port for a server, and create its network namespace",
    reply=PlaceView,
    body=PlaceOrder,
    administrators=True,
    note=f"{_LOCAL}; 409 while another holder has the port",
)
RELEASE_SERVER_PORT = Route(
    endpoint=endpoints.RELEASE_SERVER_PORT,
    summary="Give back a port of a server",
    reply=Named,
    query=PlaceName,
    administrators=True,
    note=f"{_LOCAL}; its connections are closed",
)

PLACES: tuple[Route[Any], ...] = (
    LIST_SERVER_PORTS,
    HOLD_SERVER_PORT,
    RELEASE_SERVER_PORT,
)
