"""A name that is granted again: containers of a pod have one name each, and may hold slices more than once in its life.

What was journalled and metered of the earlier grant is kept under a name of its own, so that numbers of intervals begin anew.
"""

from __future__ import annotations

import hashlib

import sqlalchemy as sa

from calabash.adapters.store import tables
from calabash.model.allocation import AllocationRecord, AllocationState

_KEPT_CHARACTERS = 50
_HASH_DIGITS = 12


def make_way(connection: sa.Connection, record: AllocationRecord) -> None:
    """Rename what was released under the name of this grant, if anything was and this is another grant."""
    journal, usage = tables.allocations, tables.usage
    before = sa.select(journal.c.granted_at).where(
        journal.c.id == record.id,
        journal.c.state == AllocationState.RELEASED.value,
        journal.c.granted_at < record.granted_at,
    )
    granted_at = connection.execute(before).scalar_one_or_none()
    if granted_at is None:
        return
    name = earlier_name(record.id, granted_at)
    connection.execute(sa.update(journal).where(journal.c.id == record.id).values(id=name))
    connection.execute(sa.update(usage).where(usage.c.allocation == record.id).values(allocation=name))


def earlier_name(allocation: str, granted_at: float) -> str:
    """Of a grant that has ended: it begins as the name does."""
    mark = hashlib.sha256(f"{allocation}/{granted_at!r}".encode()).hexdigest()[:_HASH_DIGITS]
    return f"{allocation[:_KEPT_CHARACTERS]}~{mark}"
