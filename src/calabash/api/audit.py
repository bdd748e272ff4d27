"""Shapes of the audit log."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from calabash.api.replies import Reply
from calabash.api.requests import PAGE_MAX


class AuditPage(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Which lines, in the query string."""

    limit: Annotated[int, Meta(ge=1, le=PAGE_MAX, description="items at most")] = PAGE_MAX
    after: (
        Annotated[int, Meta(ge=0, lt=10**18, description="id of the last line seen; left out: the newest lines")] | None
    ) = None


class AuditView(Reply, kw_only=True, frozen=True):
    """Who did what from where, and what came of it."""

    id: int
    at: float
    user: str
    token: str
    origin: str
    tenant: str
    action: str
    target: str
    outcome: int
    reason: str


class AuditList(Reply, kw_only=True, frozen=True):
    """Oldest first."""

    items: list[AuditView]


class AuditVerdict(Reply, kw_only=True, frozen=True):
    """Whether the chain of lines is whole: the last line that holds, and what is wrong after it."""

    whole: bool
    last: int
    wrong: str
