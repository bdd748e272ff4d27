"""Bounds that an administrator may change: of fair use, and of how much of the past is kept."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from calabash.adapters.store import Retention

Count = Annotated[int, Meta(ge=1, le=1_000_000)]
Days = Annotated[float, Meta(gt=0, le=36_500)]


class Limits(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """What one user, or all of one tenant, may take of the pool's attention. Administrators are bound by connections only."""

    waiting: Count = 1000
    waiting_of_tenant: Count = 5000
    connections: Count = 1200
    requests_per_second: Count = 50
    requests_at_once: Count = 200


class Kept(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """What the journal keeps of the past."""

    allocations: Count = Retention.allocations
    allocation_days: Days = Retention.allocation_days
    usage: Count = Retention.usage
    usage_days: Days = Retention.usage_days
    events: Count = Retention.events
    event_days: Days = Retention.event_days
    audit: Count = Retention.audit
    audit_days: Days = Retention.audit_days

    def retention(self) -> Retention:
        return Retention(**msgspec.structs.asdict(self))
