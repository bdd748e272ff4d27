"""Message types of the audit log."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from calabash.api.replies import Reply
from calabash.api.requests import PAGE_MAX


class AuditPage(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Query parameters of the list of audit log lines."""

    limit: Annotated[int, Meta(ge=1, le=PAGE_MAX, description="most items")] = PAGE_MAX
    after: (
        Annotated[int, Meta(ge=0, lt=10**18, description="id of the last line seen; left out: the newest lines")] | None
    ) = None


class AuditView(Reply, kw_only=True, frozen=True):
    """One line of the audit log: a user, its origin, an action, its target and its outcome."""

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
    """Lines of the audit log, oldest first."""

    items: list[AuditView]


class AuditVerdict(Reply, kw_only=True, frozen=True):
    """Result of the verification of the hash chain.

    ``last`` is the last valid line; ``wrong`` is the fault of the next line.
    """

    whole: bool
    last: int
    wrong: str
