"""Rename the journal entries of an earlier allocation when its name is granted again.

The allocation of a container is named after the container, which may be granted slices several times, for example after a
restart. The journal entry and the usage records of the earlier grant are kept under a new name, because the usage records
of the new grant are numbered from the beginning again.
"""

from __future__ import annotations

import hashlib

import sqlalchemy as sa

from calabash.adapters.store import tables
from calabash.model.allocation import AllocationRecord, AllocationState

_KEPT_CHARACTERS = 50
_HASH_DIGITS = 12


def rename_earlier_grant(connection: sa.Connection, record: AllocationRecord) -> None:
    """Rename the released allocation with the name of this grant, if it is an earlier grant."""
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
    """Return the new name of an ended grant, which begins with the old one."""
    mark = hashlib.sha256(f"{allocation}/{granted_at!r}".encode()).hexdigest()[:_HASH_DIGITS]
    return f"{allocation[:_KEPT_CHARACTERS]}~{mark}"
