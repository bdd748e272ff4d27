"""Rename the journal entry of a released allocation when its name is granted again.

The name of an allocation of a container is the same each time the container starts. The journal entry and the usage
records of the earlier allocation are kept under a new name. The usage records of the new allocation can then be
numbered from the beginning.
"""

from __future__ import annotations

import hashlib

import sqlalchemy as sa

from calabash.adapters.store import tables
from calabash.model.allocation import AllocationRecord, AllocationState

_KEPT_CHARACTERS = 50
_HASH_DIGITS = 12


def make_way(connection: sa.Connection, record: AllocationRecord) -> None:
    """Rename the earlier, released allocation that has the same name as the one to be granted, if there is one."""
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
    """Return the new name of an earlier allocation: its old name, cut if it is long, ``~`` and a hash."""
    mark = hashlib.sha256(f"{allocation}/{granted_at!r}".encode()).hexdigest()[:_HASH_DIGITS]
    return f"{allocation[:_KEPT_CHARACTERS]}~{mark}"
