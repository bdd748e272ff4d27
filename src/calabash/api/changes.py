"""What whoever watches is told: which things changed, not what they are now."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from calabash.api.replies import Reply
from calabash.api.route import Route

WAIT_S_MAX = 30.0


class ChangePage(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Which changes, in the query string."""

    after: Annotated[int, Meta(ge=-1, lt=10**18, description="`next` of the last reply; -1 begins now")] = -1
    wait_s: Annotated[float, Meta(ge=0, le=WAIT_S_MAX, description="how long to wait for one")] = 0.0


class ChangeView(Reply, kw_only=True, frozen=True):
    """``kind`` is a list of the API (``devices``, ``allocations``, ``queues``), ``name`` one of it."""

    id: int
    kind: str
    name: str
    change: Literal["added", "changed", "removed"]


class ChangeList(Reply, kw_only=True, frozen=True):
    """``next`` goes into ``after`` of the following request. ``reset``: some are not known any more, read everything again."""

    items: list[ChangeView]
    next: int
    reset: bool


CHANGES = (
    Route(
        method="GET",
        path="/v1/changes",
        summary="what changed since; waits for it",
        reply=ChangeList,
        query=ChangePage,
        note="only what whoever asks may see; over TCP `GET /v1/watch` tells the same as server-sent events",
    ),
)
