"""Usage that waits to be collected: the usage table itself, read in the order of its row numbers.

Theory of operation. An interval is written once, in the transaction that closes it, so nothing can be metered and not be here,
or be here twice. Row numbers grow with every commit and are never given twice, for the youngest row is never removed; with the
*epoch*, a random name that is made with the database, they name an interval for ever. Marks in ``meta`` say up to which row
others have acknowledged (``acked``), may have seen (``sent``, written before anything is sent), and up to which rows are folded
(``folded``). What is acknowledged is folded away in time: rows of what has ended are removed, rows of what is held become one
row per slice, which is what a restarted agent goes on from. Rows that nobody can have seen may be joined with their
neighbours (``join``), which changes no sum.
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
    """Row numbers: up to where it is acknowledged, may have been sent, and is folded."""

    acked: int = 0
    sent: int = 0
    folded: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberedUsage:
    """An interval and the number of its row."""

    number: int
    record: UsageRecord


class UsageOutbox:
    """Outbox of usage records. Every method may raise CalabashError; then nothing of the call was written."""

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
        """Return the next records after that row, and mark them as sent."""
        table = tables.usage
        query = sa.select(table).where(table.c.id > number).order_by(table.c.id).limit(limit)
        with self._database.transaction() as connection:
            rows = [dict(row) for row in connection.execute(query).mappings()]
            found = [NumberedUsage(number=row.pop("id"), record=UsageRecord(**row)) for row in rows]
            if found and found[-1].number > _marks(connection).sent:
                _set(connection, usage_sent=found[-1].number)
        return found

    def acknowledge(self, number: int) -> None:
        """Mark everything up to that row as stored by the collector."""
        with self._database.transaction() as connection:
            if number > _marks(connection).acked:
                _set(connection, usage_acked=number)

    def go_back(self, number: int) -> OutboxMarks:
        """Move the acknowledged mark back to that row, as far as its records still exist; return the marks."""
        with self._database.transaction() as connection:
            marks = _marks(connection)
            _set(connection, usage_acked=max(marks.folded, min(number, marks.acked)))
            return _marks(connection)

    def fold(self, *, keep: int, limit: int = 5000) -> int:
        """Remove or join up to ``limit`` acknowledged rows, except the newest ``keep``; return the number of removed rows."""
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
    """Yield runs of adjacent records that begin in the same span."""
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
    """Replace the amounts of the last record by the sums of all; return the numbers of the others, which are to be removed."""
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
