"""Change notifications: message types and the route. A notification names a changed object, without its content."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from calabash.api import endpoints
from calabash.api.replies import Reply
from calabash.api.route import Route

WAIT_S_MAX = 30.0


class ChangePage(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Query parameters of the list of changes."""

    after: Annotated[
        int, Meta(ge=-1, lt=10**18, description="`next` of the last reply; -1 begins with the next change")
    ] = -1
    wait_s: Annotated[float, Meta(ge=0, le=WAIT_S_MAX, description="seconds to wait for a change")] = 0.0


class ChangeView(Reply, kw_only=True, frozen=True):
    """One change. ``kind`` is a list of the API (``devices``, ``allocations``, ``queues``), ``name`` the object in it."""

    id: int
    kind: str
    name: str
    change: Literal["added", "changed", "removed"]


class ChangeList(Reply, kw_only=True, frozen=True):
    """Changes. ``next`` is the value of ``after`` for the following request.

    If ``reset`` is true, older changes are not available any more, and the client must read all objects again.
    """

    items: list[ChangeView]
    next: int
    reset: bool


LIST_CHANGES = Route(
    endpoint=endpoints.LIST_CHANGES,
    summary="List changes since an earlier reply, and wait for the next change",
    reply=ChangeList,
    query=ChangePage,
    note="only objects that the requesting user may see; over TCP, `GET /v1/watch` sends the same as server-sent events",
)

CHANGES: tuple[Route[Any], ...] = (LIST_CHANGES,)
