"""Retention: limit the stored history by age and by number of rows, and remove rows beyond these limits.

Rows are removed in small batches, oldest first, each in its own transaction, so that a grant never waits long. Rows of
held allocations are never removed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import sqlalchemy as sa

from calabash.adapters.store import tables
from calabash.adapters.store.audit import AuditTable
from calabash.adapters.store.database import Database
from calabash.adapters.store.usage.merging import flatten
from calabash.adapters.store.usage.removed_usage import note_removed_usage, removing_usage
from calabash.model.allocation import AllocationState

BATCH_ROWS = 200
DAY_S = 86_400.0
INVOICED_DAYS = 70.0  # a whole month, and time to send its invoices


@dataclass(frozen=True, kw_only=True)
class Retention:
    """Limits of each table: largest number of rows, and largest age in days.

    The number of rows is no reason to remove recent usage records, which are perhaps not invoiced yet. If there are too
    many, they are merged into fewer records (``usage.merging``).
    """

    allocations: int = 100_000
    allocation_days: float = 90.0
    usage: int = 1_000_000
    usage_days: float = 400.0
    events: int = 20_000
    event_days: float = 90.0
    audit: int = 1_000_000
    audit_days: float = 400.0


def trim(database: Database, kept: Retention, *, now_s: float) -> int:
    """Remove at most one batch of rows beyond the limits from each table; return the number of removed rows."""
    gone = flatten(database, bound=kept.usage, now_s=now_s)
    gone += AuditTable(database).trim(kept=kept.audit, before_s=now_s - kept.audit_days * DAY_S, batch=BATCH_ROWS)
    for table, age, where, count, days in _rules(kept):
        youngest_s = now_s - INVOICED_DAYS * DAY_S if table is tables.usage else math.inf
        with database.transaction() as connection:
            rows = sa.select(table.c.id).where(where)
            total = connection.execute(sa.select(sa.func.count()).select_from(table).where(where)).scalar_one()
            oldest = rows.order_by(age, table.c.id)
            beyond = max(0, min(BATCH_ROWS, total - count))
            surplus = oldest.where(age < youngest_s) if youngest_s < math.inf else oldest
            names = list(connection.execute(surplus.limit(beyond)).scalars()) if beyond else []
            if len(names) < BATCH_ROWS:
                old = oldest.where(age < now_s - days * DAY_S).limit(BATCH_ROWS)
                names = list({*names, *connection.execute(old).scalars()})[:BATCH_ROWS]
            removal = sa.delete(table).where(table.c.id.in_(names))
            if names and table is tables.usage:
                last = sa.select(sa.func.max(table.c.to_s)).where(table.c.id.in_(names))
                note_removed_usage(connection, until_s=connection.execute(last).scalar_one(), at_s=now_s)
                with removing_usage(connection):
                    gone += connection.execute(removal).rowcount
            elif names:
                gone += connection.execute(removal).rowcount
    return gone


def _rules(kept: Retention) -> Iterator[tuple[sa.Table, sa.Column[float], sa.ColumnElement[bool], int, float]]:
    allocations, usage, events = tables.allocations, tables.usage, tables.events
    released = allocations.c.state == AllocationState.RELEASED.value
    yield allocations, allocations.c.ended_at, released, kept.allocations, kept.allocation_days
    # Records of held allocations are kept, because a restarted pool continues from them.
    held = sa.select(allocations.c.id).where(~released)
    yield usage, usage.c.to_s, usage.c.allocation.not_in(held), kept.usage, kept.usage_days
    yield events, events.c.at, sa.true(), kept.events, kept.event_days
