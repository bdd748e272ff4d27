"""Queues, their permitted users and their past use in the database."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import msgspec
import sqlalchemy as sa

from calabash.adapters.store import tables
from calabash.adapters.store.database import Database
from calabash.model.allocation import QueueRecord

_PAST_USE = "past_use"


class _PastUse(msgspec.Struct, frozen=True):
    """Value of ``meta`` for the past use of queues."""

    at_s: float
    device_s: dict[str, float]


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

    def put_past_use(self, past: Mapping[str, float], at_s: float) -> None:
        """Replace the past use of the queues, in device-seconds by name.

        Args:
            at_s: time of the system clock at which the queues had it.
        """
        value = json.dumps({"at_s": at_s, "device_s": dict(past)})
        with self._database.transaction() as connection:
            connection.execute(sa.delete(tables.meta).where(tables.meta.c.key == _PAST_USE))
            connection.execute(sa.insert(tables.meta).values(key=_PAST_USE, value=value))

    def past_use(self) -> tuple[dict[str, float], float]:
        """Return the past use that was put last, and its time; an empty dictionary if none was."""
        with self._database.reading() as connection:
            query = sa.select(tables.meta.c.value).where(tables.meta.c.key == _PAST_USE)
            value = connection.execute(query).scalar_one_or_none()
        if value is None:
            return {}, 0.0
        found = msgspec.json.decode(value, type=_PastUse)
        return found.device_s, found.at_s

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
