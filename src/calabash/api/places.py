"""Shapes and routes of places: ports of tenant networks that servers of the pool's machine listen at."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from calabash.api.networks import PATH as NETWORKS
from calabash.api.networks import Path
from calabash.api.replies import Named, Reply
from calabash.api.route import Route
from calabash.model.request import KEEP_S_MAX

PATH = f"{NETWORKS}/places"
_HERE = "processes of the pool's machine alone"


class PlaceOrder(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """A port is to be held. Asked again by the same holder it goes on being held."""

    port: Path
    holder: Annotated[str, Meta(min_length=1, max_length=256, description="by which others are told who has it")]
    keep_s: Annotated[float, Meta(ge=1, le=KEEP_S_MAX, description="it ends when nobody has asked again for so long")]


class PlaceName(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Whose place, in the query string."""

    port: Path


class PlaceView(Reply, kw_only=True, frozen=True):
    """A port that a server holds. ``namespace``: the file of the network namespace in which it listens."""

    port: str
    tenant: str
    holder: str
    keep_s: float
    addresses: list[str]
    namespace: str


class PlaceList(Reply, kw_only=True, frozen=True):
    items: list[PlaceView]


PLACES = (
    Route(
        method="GET",
        path=PATH,
        summary="ports that servers of this machine listen at",
        reply=PlaceList,
        administrators=True,
    ),
    Route(
        method="POST",
        path=PATH,
        summary="holds a port for a server, and makes its namespace",
        reply=PlaceView,
        body=PlaceOrder,
        administrators=True,
        note=f"{_HERE}; 409 while another has the port",
    ),
    Route(
        method="DELETE",
        path=PATH,
        summary="gives a port of a server back",
        reply=Named,
        query=PlaceName,
        administrators=True,
        note=f"{_HERE}; who is connected by it is cut off",
    ),
)
