"""Audit log in the database: lines are appended and read. Only retention deletes lines, the oldest first."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict

import sqlalchemy as sa

from calabash.adapters.store import tables
from calabash.adapters.store.database import Database
from calabash.model.audit import AuditHead, AuditLine

_BEGINNING = tables.AUDIT_BEGINNING


class AuditTable:
    """Audit table. If a method raises CalabashError, it has written nothing."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, lines: Sequence[AuditLine]) -> None:
        """Append lines."""
        if lines:
            with self._database.transaction() as connection:
                connection.execute(sa.insert(tables.audit), [asdict(line) for line in lines])

    def lines(
        self, *, after: int = 0, limit: int = 1000, tenants: Collection[str] | None = None, newest: bool = False
    ) -> list[AuditLine]:
        """Return lines of the log, oldest first.

        Args:
            after: number of a line; only later lines are returned.
            limit: greatest number of lines.
            tenants: tenants whose lines are returned; None for all.
            newest: True to return the last ``limit`` lines instead of the first.
        """
        table = tables.audit
        query = sa.select(table).where(table.c.id > after)
        if tenants is not None:
            query = query.where(table.c.tenant.in_(sorted(tenants)))
        query = query.order_by(table.c.id.desc() if newest else table.c.id).limit(limit)
        with self._database.reading() as connection:
            found = [AuditLine(**row) for row in connection.execute(query).mappings()]
        return found[::-1] if newest else found

    def end(self) -> AuditHead:
        """Return the number and seal of the last line; if the log is empty, the result of :meth:`beginning`."""
        newest = self.lines(limit=1, newest=True)
        return AuditHead(id=newest[0].id, seal=newest[0].seal) if newest else self.beginning()

    def beginning(self) -> AuditHead:
        """Return the number and seal of the last line that retention has removed, where the hash chain now begins."""
        with self._database.reading() as connection:
            query = sa.select(tables.meta.c.value).where(tables.meta.c.key == _BEGINNING)
            value = connection.execute(query).scalar_one_or_none()
        number, _, seal = (value or "").partition(" ")
        return AuditHead(id=int(number), seal=seal) if number.isdigit() and seal else AuditHead()

    def trim(self, *, kept: int, before_s: float, batch: int = 1000) -> int:
        """Remove one batch of the oldest lines; return the number of removed lines. The newest line is never removed.

        Args:
            kept: number of lines to keep.
            before_s: time in seconds since the epoch; older lines are removed.
            batch: greatest number of lines to remove.
        """
        oldest = self.lines(limit=batch)
        end = self.end()
        gone = [line for line in oldest if line.id < end.id and (line.at < before_s or line.id <= end.id - kept)]
        if gone:
            last = gone[-1]
            gone = [line for line in oldest if line.id <= last.id]
            with self._database.transaction() as connection:
                # Stored first: the database refuses to delete lines after the one that is stored here.
                connection.execute(sa.delete(tables.meta).where(tables.meta.c.key == _BEGINNING))
                connection.execute(sa.insert(tables.meta).values(key=_BEGINNING, value=f"{last.id} {last.seal}"))
                connection.execute(sa.delete(tables.audit).where(tables.audit.c.id <= last.id))
        return len(gone)
