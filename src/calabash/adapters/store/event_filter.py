"""Conditions in SQL for the allocations and events that a principal may see, so that other rows are not read."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from calabash.adapters.store import tables


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationsSeen:
    """Allocations that a principal may see.

    Args:
        tenants: tenants all of whose allocations are visible.
        uid: uid of the user; negative if there is none.
        user: name of the user, which is compared for allocations without a uid.
        own: True if the user's own allocations are visible in all tenants.
    """

    tenants: frozenset[str]
    uid: int
    user: str
    own: bool  # whether what is the user's own is seen


@dataclass(frozen=True, slots=True, kw_only=True)
class EventsSeen:
    """Events that a principal may see.

    Args:
        allocations: allocations whose events are visible.
        waiting: IDs of waiting requests whose events are visible.
        kinds: kinds of events without an allocation that are visible.
    """

    allocations: AllocationsSeen
    waiting: frozenset[str]
    kinds: frozenset[str]


def held_by(seen: AllocationsSeen) -> sa.ColumnElement[bool]:
    """Return the condition on the table of allocations."""
    held = tables.allocations.c
    whose: sa.ColumnElement[bool] = held.tenant.in_(sorted(seen.tenants))
    if seen.own:
        named = sa.and_(held.uid < 0, held.user == seen.user)
        whose = sa.or_(whose, named, sa.and_(held.uid >= 0, held.uid == seen.uid))
    return whose


def seen_by(seen: EventsSeen) -> sa.ColumnElement[bool]:
    """Return the condition on the table of events."""
    events, held = tables.events.c, tables.allocations.c
    journalled = sa.select(held.id).where(held.id == events.allocation, held_by(seen.allocations)).exists()
    return sa.or_(
        sa.and_(events.allocation == "", events.kind.in_(sorted(seen.kinds))),
        events.allocation.in_(sorted(seen.waiting)),
        sa.and_(events.allocation != "", journalled),
    )
