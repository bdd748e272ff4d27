"""Queues and their permitted users in the database."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import sqlalchemy as sa

from calabash.adapters.store import tables
from calabash.adapters.store.database import Database
from calabash.model.allocation import QueueRecord


class Administration:
    """Queue table. If a method raises CalabashError, it has written nothing."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def put_queue(self, record: QueueRecord) -> None:
        """Create the queue or replace it."""
        self._put(tables.queues, record.name, asdict(record))

    def delete_queue(self, name: str) -> bool:
        """Delete the queue; return False if it does not exist."""
        return self._delete(tables.queues, name)

    def queues(self) -> list[QueueRecord]:
        """Return all queues by name."""
        return [QueueRecord(**row) for row in self._all(tables.queues)]

    def _put(self, table: sa.Table, name: str, values: dict[str, Any]) -> None:
        values |= {"users": list(values["users"]), "groups": list(values["groups"])}
        with self._database.transaction() as connection:
            connection.execute(sa.delete(table).where(table.c.name == name))
            connection.execute(sa.insert(table).values(values))

    def _delete(self, table: sa.Table, name: str) -> bool:
        with self._database.transaction() as connection:
            return connection.execute(sa.delete(table).where(table.c.name == name)).rowcount > 0

    def _all(self, table: sa.Table) -> list[dict[str, Any]]:
        with self._database.transaction() as connection:
            rows = connection.execute(sa.select(table).order_by(table.c.name)).mappings().all()
        return [{**row, "users": tuple(row["users"]), "groups": tuple(row["groups"])} for row in rows]
