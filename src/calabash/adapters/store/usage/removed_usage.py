"""Note in the database of the usage records that retention has removed or merged.

The verification of an old invoice compares it with its usage records. It needs the note to tell records that were
removed by retention from records that were changed. The database refuses to delete the records of an issued invoice,
except in a transaction that is marked as one of retention.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import sqlalchemy as sa

from calabash.adapters.store import tables

_KEY = "usage_removed"


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovedUsage:
    """Note about usage records that retention has removed or merged.

    Args:
        until_s: latest end of such a record, in seconds since the epoch; 0 if there is none.
        at_s: time of the last removal or merge, in seconds since the epoch; 0 if there was none.
    """

    until_s: float = 0.0
    at_s: float = 0.0


def removed_usage(connection: sa.Connection) -> RemovedUsage:
    """Return the stored note; its fields are 0 if retention has not removed or merged any usage record yet."""
    table = tables.meta
    found = connection.execute(sa.select(table.c.value).where(table.c.key == _KEY)).scalar_one_or_none()
    until_s, at_s = (float(word) for word in (found or "0 0").split())
    return RemovedUsage(until_s=until_s, at_s=at_s)


@contextmanager
def removing_usage(connection: sa.Connection) -> Iterator[None]:
    """Permit the deletion of any usage record by retention in this transaction, while the context lasts.

    A row of the table ``meta`` marks the transaction for the triggers of the database; other transactions do not see the row.
    """
    key = tables.meta.c.key
    connection.execute(sa.insert(tables.meta).values(key=tables.USAGE_REMOVING, value="1"))
    yield
    connection.execute(sa.delete(tables.meta).where(key == tables.USAGE_REMOVING))


def note_removed_usage(connection: sa.Connection, *, until_s: float, at_s: float) -> None:
    """Store the note that records which ended up to ``until_s`` were removed at ``at_s`` (seconds since the epoch)."""
    before, table = removed_usage(connection), tables.meta
    value = f"{max(until_s, before.until_s)!r} {max(at_s, before.at_s)!r}"
    connection.execute(sa.delete(table).where(table.c.key == _KEY))
    connection.execute(sa.insert(table).values(key=_KEY, value=value))
