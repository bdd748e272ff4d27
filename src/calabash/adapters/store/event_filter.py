"""Visibility of allocations and events as conditions in SQL, so that no invisible row is read."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from calabash.adapters.store import tables


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationsSeen:
    """Filter of allocations.

    Permits the allocations of ``tenants``. If ``own`` is true, it also permits the allocations of one user in any
    tenant. If an allocation has a uid, it belongs to the user with this ``uid``, else to the user named ``user``.
    """

    tenants: frozenset[str]
    uid: int
    user: str
    own: bool  # True if the user's own allocations are visible


@dataclass(frozen=True, slots=True, kw_only=True)
class EventsSeen:
    """Filter of events.

    Args:
        allocations: events of the allocations that this filter permits are visible.
        waiting: IDs of requests whose events are visible; waiting requests are not in the table of allocations.
        kinds: kinds of events that are visible if they concern no allocation.
    """

    allocations: AllocationsSeen
    waiting: frozenset[str]
    kinds: frozenset[str]


def held_by(seen: AllocationsSeen) -> sa.ColumnElement[bool]:
    """Return the SQL condition for rows of the table of allocations that a filter permits."""
    held = tables.allocations.c
    whose: sa.ColumnElement[bool] = held.tenant.in_(sorted(seen.tenants))
    if seen.own:
        named = sa.and_(held.uid < 0, held.user == seen.user)
        whose = sa.or_(whose, named, sa.and_(held.uid >= 0, held.uid == seen.uid))
    return whose


def seen_by(seen: EventsSeen) -> sa.ColumnElement[bool]:
    """Return the SQL condition for rows of the table of events that a filter permits."""
    events, held = tables.events.c, tables.allocations.c
    journalled = sa.select(held.id).where(held.id == events.allocation, held_by(seen.allocations)).exists()
    return sa.or_(
        sa.and_(events.allocation == "", events.kind.in_(sorted(seen.kinds))),
        events.allocation.in_(sorted(seen.waiting)),
        sa.and_(events.allocation != "", journalled),
    )
