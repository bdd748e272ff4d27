"""Settings of request limits per user and tenant, and of retention."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from calabash.adapters.store import Retention

Count = Annotated[int, Meta(ge=1, le=1_000_000)]
Days = Annotated[float, Meta(gt=0, le=36_500)]


class Limits(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Request limits of each user, and of each tenant. Administrators are limited in connections only.

    Args:
        waiting: waiting requests of one user.
        waiting_of_tenant: waiting requests of one tenant.
        connections: open connections of one user.
        requests_per_second: mean rate of the API requests of one user; faster ones are delayed.
        requests_at_once: API requests of one user that may come in a burst without a delay.
    """

    waiting: Count = 1000
    waiting_of_tenant: Count = 5000
    connections: Count = 1200
    requests_per_second: Count = 50
    requests_at_once: Count = 200


class RetentionSettings(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Retention of the journal. A record is deleted if there are more, or if it is older.

    Args:
        allocations: ended allocations that are kept.
        allocation_days: age in days at which ended allocations are deleted.
        usage: usage records that are kept.
        usage_days: age in days at which usage records are deleted.
        events: events that are kept.
        event_days: age in days at which events are deleted.
        audit: lines of the audit log that are kept.
        audit_days: age in days at which lines of the audit log are deleted.
    """

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
