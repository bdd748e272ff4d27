"""Outbox of a node: usage records that the collector of the cluster has not stored yet.

Theory of operation. The outbox is the table of usage records, read in the order of row numbers. A record is written
once, in the transaction that closes its interval, so none is lost or stored twice. Row numbers grow and are never used
again, because the row with the largest number is never removed. Together with the *epoch*, a random name of the
database, a row number identifies a record for ever. Three marks in the table ``meta`` are row numbers: up to ``acked``
the collector has acknowledged the records, up to ``sent`` it may have received them (written before they are sent), and
up to ``folded`` they are folded. Folding saves space: acknowledged records of ended allocations are removed, and those
of a held slice are replaced by one record with their sums, from which a restarted agent continues. Adjacent records
that were not sent yet may be joined (``join``), which changes no sum.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import sqlalchemy as sa

from calabash.adapters.store import tables
from calabash.adapters.store.database import Database
from calabash.model.allocation import AllocationState, UsageRecord

_EPOCH = "usage_epoch"
_MARKS = ("usage_acked", "usage_sent", "usage_folded")
_SUMMED = ("allocated_gpu_s", "used_gpu_s", "memory_mib_s", "idle_s", "uncertain_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxMarks:
    """Row numbers up to which records are acknowledged, may have been sent, and are folded."""

    acked: int = 0
    sent: int = 0
    folded: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberedUsage:
    """Usage record and the number of its row."""

    number: int
    record: UsageRecord


class UsageOutbox:
    """Outbox of usage records. If a method raises CalabashError, it has written nothing."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def epoch(self) -> str:
        """Return the name of this database, 32 hexadecimal digits; made at the first call."""
        with self._database.transaction() as connection:
            table = tables.meta
            name = secrets.token_hex(16)
            connection.execute(self._database.insert_or_ignore(table, ["key"]).values(key=_EPOCH, value=name))
            found: str = connection.execute(sa.select(table.c.value).where(table.c.key == _EPOCH)).scalar_one()
        return found

    def youngest(self) -> int:
        """Return the number of the last record."""
        with self._database.transaction() as connection:
            found: int = connection.execute(sa.select(sa.func.max(tables.usage.c.id))).scalar_one() or 0
        return found

    def renew(self, number: int) -> None:
        """Choose a new epoch after the database was restored to an earlier state.

        Args:
            number: last row that was sent under the old epoch; rows up to it become acknowledged and folded.
        """
        with self._database.transaction() as connection:
            table = tables.meta
            connection.execute(sa.delete(table).where(table.c.key == _EPOCH))
            connection.execute(sa.insert(table).values(key=_EPOCH, value=secrets.token_hex(16)))
            _set(connection, usage_acked=number, usage_folded=number)

    def marks(self) -> OutboxMarks:
        """Return the marks of the outbox."""
        with self._database.transaction() as connection:
            return _marks(connection)

    def waiting(self) -> int:
        """Return the number of records that are not acknowledged."""
        table = tables.usage
        with self._database.transaction() as connection:
            acked = _marks(connection).acked
            query = sa.select(sa.func.count()).select_from(table).where(table.c.id > acked)
            found: int = connection.execute(query).scalar_one()
        return found

    def after(self, number: int, *, limit: int) -> list[NumberedUsage]:
        """Return up to ``limit`` records after the row ``number``, and move the mark ``sent`` to the last of them."""
        table = tables.usage
        query = sa.select(table).where(table.c.id > number).order_by(table.c.id).limit(limit)
        with self._database.transaction() as connection:
            rows = [dict(row) for row in connection.execute(query).mappings()]
            found = [NumberedUsage(number=row.pop("id"), record=UsageRecord(**row)) for row in rows]
            if found and found[-1].number > _marks(connection).sent:
                _set(connection, usage_sent=found[-1].number)
        return found

    def acknowledge(self, number: int) -> None:
        """Mark all records up to that row number as stored by the collector."""
        with self._database.transaction() as connection:
            if number > _marks(connection).acked:
                _set(connection, usage_acked=number)

    def go_back(self, number: int) -> OutboxMarks:
        """Move the mark ``acked`` back to that row number, because the collector has lost later records; return the marks.

        The mark is not moved before ``folded``, because folded records do not exist any more.
        """
        with self._database.transaction() as connection:
            marks = _marks(connection)
            _set(connection, usage_acked=max(marks.folded, min(number, marks.acked)))
            return _marks(connection)

    def fold(self, *, keep: int, limit: int = 5000) -> int:
        """Fold up to ``limit`` acknowledged rows; return the number of removed rows.

        Rows of ended allocations are removed; the rows of a held slice are replaced by one row with their sums.

        Args:
            keep: number of the newest acknowledged rows that are not folded.
        """
        table, journal = tables.usage, tables.allocations
        held = sa.select(journal.c.id, journal.c.granted_at).where(journal.c.state != AllocationState.RELEASED.value)
        with self._database.transaction() as connection:
            marks = _marks(connection)
            youngest = connection.execute(sa.select(sa.func.max(table.c.id))).scalar_one() or 0
            until = min(marks.acked - keep, youngest - 1, marks.folded + limit)
            if until <= marks.folded:
                return 0
            granted = {row.id: row.granted_at for row in connection.execute(held)}
            folded = sa.select(table).where(table.c.id <= until).order_by(table.c.id)
            slices: dict[tuple[str, str], list[dict[str, Any]]] = {}
            gone = []
            for row in connection.execute(folded).mappings():
                since_s = granted.get(row["allocation"])
                if since_s is None or row["from_s"] < since_s:
                    gone.append(row["id"])
                else:
                    slices.setdefault((row["allocation"], row["device"]), []).append(dict(row))
            for rows in slices.values():
                gone += _join(connection, rows)
            _remove(connection, gone)
            _set(connection, usage_folded=until)
        return len(gone)

    def join(self, *, span_s: float = 3600.0) -> int:
        """Join adjacent records of a slice that were not sent yet; return the number of removed rows. No sum changes.

        Args:
            span_s: only records that begin in the same span of this length are joined.
        """
        table = tables.usage
        with self._database.transaction() as connection:
            unseen = table.c.id > _marks(connection).sent
            slices = sa.select(table.c.allocation, table.c.device).where(unseen)
            slices = slices.group_by(table.c.allocation, table.c.device).having(sa.func.count() > 1)
            gone: list[int] = []
            for name, device in connection.execute(slices).all():
                mine = sa.select(table).where(unseen, table.c.allocation == name, table.c.device == device)
                rows = [dict(row) for row in connection.execute(mine.order_by(table.c.id)).mappings()]
                for run in _runs(rows, span_s):
                    gone += _join(connection, run)
            _remove(connection, gone)
        return len(gone)


def _marks(connection: sa.Connection) -> OutboxMarks:
    table = tables.meta
    found = connection.execute(sa.select(table.c.key, table.c.value).where(table.c.key.in_(_MARKS))).all()
    values = {key: int(value) for key, value in found}
    acked, sent, folded = (values.get(name, 0) for name in _MARKS)
    return OutboxMarks(acked=acked, sent=sent, folded=folded)


def _set(connection: sa.Connection, **marks: int) -> None:
    table = tables.meta
    for name, value in marks.items():
        connection.execute(sa.delete(table).where(table.c.key == name))
        connection.execute(sa.insert(table).values(key=name, value=str(value)))


def _runs(rows: Sequence[dict[str, Any]], span_s: float) -> Iterable[list[dict[str, Any]]]:
    """Yield runs of adjacent records, all of which begin in the same span of time.

    Records are adjacent if one begins at the moment at which the other ends.

    Args:
        rows: records in order of time.
        span_s: length of a span; spans are counted from 1970 on.
    """
    if not rows:
        return
    run = [rows[0]]
    for before, row in pairwise(rows):
        same_span = before["from_s"] // span_s == row["from_s"] // span_s
        if same_span and before["to_s"] == row["from_s"]:
            run.append(row)
        else:
            yield run
            run = [row]
    yield run


def _join(connection: sa.Connection, rows: Sequence[dict[str, Any]]) -> list[int]:
    """Join usage records into the last of them, which gets their sums; return the numbers of the rows to be removed."""
    if len(rows) < 2:
        return []
    table = tables.usage
    sums = {name: sum(row[name] for row in rows) for name in _SUMMED}
    begin = min(row["from_s"] for row in rows)
    connection.execute(sa.update(table).where(table.c.id == rows[-1]["id"]).values(from_s=begin, **sums))
    return [row["id"] for row in rows[:-1]]


def _remove(connection: sa.Connection, numbers: Sequence[int]) -> None:
    table = tables.usage
    for start in range(0, len(numbers), 500):
        connection.execute(sa.delete(table).where(table.c.id.in_(numbers[start : start + 500])))
