"""Notifications, and notices that wait for delivery: a bounded queue in the database.

A notice is an event that users want to know, and a delivery is the message about it to one receiver. A notice is added
once: its ID and its deliveries are written in one transaction. Each receiver has its own queue in order of time, so a
receiver that does not answer delays only its own queue. If a queue is full, further notices are not queued for this
receiver, only counted. A delivery is removed when it was accepted, permanently refused, or too old.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import msgspec
import sqlalchemy as sa

from calabash.adapters.store import tables
from calabash.adapters.store.billing import tables as billing_tables
from calabash.adapters.store.database import Database
from calabash.model.notices import Delivery, Notice, NoticeChannel, NoticeKind, Notification, NotificationState

WAITING_MAX = 500  # of one receiver
TOLD_MAX = 100_000
ERROR_CHARACTERS_MAX = 300
_CURSOR = "notices_events"
_N, _D, _T = tables.notifications, tables.deliveries, tables.notices_told
_SETTINGS = ("tenant", "name", "channel", "target", "kinds", "secret", "created_at")


class NoticeTables:
    """Notification tables. If a method raises CalabashError, it has written nothing."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def notifications(self) -> list[tuple[Notification, NotificationState]]:
        """Return all notifications by tenant and name, each with its state."""
        waits = sa.select(_D.c.tenant, _D.c.name, sa.func.count()).group_by(_D.c.tenant, _D.c.name)
        with self._database.reading() as connection:
            waiting = {(tenant, name): count for tenant, name, count in connection.execute(waits)}
            rows = connection.execute(sa.select(_N).order_by(_N.c.tenant, _N.c.name)).mappings().all()
        return [_known(dict(row), waiting.get((row["tenant"], row["name"]), 0)) for row in rows]

    def put(self, notification: Notification) -> None:
        """Create or replace the notification; its state and waiting deliveries are kept."""
        values = asdict(notification) | {"channel": notification.channel.value, "kinds": [*notification.kinds]}
        there = _of(_N, notification.tenant, notification.name)
        with self._database.transaction() as connection:
            fresh = {"tries": 0, "next_at": 0.0, "last_error": ""}
            if connection.execute(sa.update(_N).where(*there).values(values | fresh)).rowcount == 0:
                connection.execute(sa.insert(_N).values(values))

    def delete(self, tenant: str, name: str) -> bool:
        """Delete the notification with its waiting deliveries; return False if it does not exist."""
        with self._database.transaction() as connection:
            connection.execute(sa.delete(_D).where(*_of(_D, tenant, name)))
            return connection.execute(sa.delete(_N).where(*_of(_N, tenant, name))).rowcount > 0

    def post(self, notices: Sequence[Notice], *, cursor: int | None = None) -> int:
        """Add notices to the queues of their receivers; return the number of deliveries.

        Args:
            notices: the notices. Those whose ID was added before are skipped.
            cursor: number of the last event that was examined for notices, stored in the same transaction; None:
                unchanged.
        """
        made = 0
        with self._database.transaction() as connection:
            receivers = [_known(dict(row), 0)[0] for row in connection.execute(sa.select(_N)).mappings()]
            for notice in notices:
                told = self._database.insert_or_ignore(_T, ["id"]).values(id=notice.id[:128], at=notice.at)
                if connection.execute(told.returning(_T.c.id)).first() is not None:
                    made += sum(_line_up(connection, one, notice) for one in receivers if one.wants(notice))
            if cursor is not None:
                connection.execute(sa.delete(tables.meta).where(tables.meta.c.key == _CURSOR))
                connection.execute(sa.insert(tables.meta).values(key=_CURSOR, value=str(cursor)))
        return made

    def cursor(self) -> int:
        """Return the number of the last event that was examined for notices; -1 if none was."""
        with self._database.reading() as connection:
            query = sa.select(tables.meta.c.value).where(tables.meta.c.key == _CURSOR)
            value = connection.execute(query).scalar_one_or_none()
        return int(value) if value is not None else -1

    def newest_event(self) -> int:
        """Return the ID of the newest event; 0 if there is none."""
        with self._database.reading() as connection:
            return int(connection.execute(sa.select(sa.func.max(tables.events.c.id))).scalar_one_or_none() or 0)

    def invoices_since(self, at: float) -> list[tuple[str, str, str, str, float]]:
        """Return kind, number, tenant, amount with currency, and time of issue of the invoices issued since ``at``."""
        table = billing_tables.invoices
        query = sa.select(table).where(table.c.issued_at >= at).order_by(table.c.issued_at).limit(1000)
        with self._database.reading() as connection:
            rows = connection.execute(query).mappings().all()
        return [(r["kind"], r["number"], r["tenant"], f"{r['total']} {r['currency']}", r["issued_at"]) for r in rows]

    def heads(self, *, now_s: float) -> list[tuple[Notification, NotificationState, Delivery]]:
        """Return the oldest delivery of each receiver whose next attempt is due. Deliveries are ordered by age."""
        other = _D.alias()
        first = sa.select(sa.func.min(other.c.at)).where(other.c.tenant == _N.c.tenant, other.c.name == _N.c.name)
        oldest = first.correlate(_N).scalar_subquery()
        joined = sa.and_(_D.c.tenant == _N.c.tenant, _D.c.name == _N.c.name, _D.c.at == oldest)
        columns = (_N, _D.c.id.label("d_id"), _D.c.at.label("d_at"), _D.c.notice.label("d_notice"))
        query = (
            sa.select(*columns).select_from(_N.join(_D, joined)).where(_N.c.next_at <= now_s).order_by(_D.c.at, _D.c.id)
        )
        found: dict[tuple[str, str], tuple[Notification, NotificationState, Delivery]] = {}
        with self._database.reading() as connection:
            rows = [dict(row) for row in connection.execute(query).mappings()]
        for row in rows:
            made = Delivery(
                id=row.pop("d_id"),
                tenant=row["tenant"],
                name=row["name"],
                at=row.pop("d_at"),
                notice=msgspec.convert(row.pop("d_notice"), Notice),
            )
            found.setdefault((made.tenant, made.name), (*_known(row, 0), made))
        return list(found.values())

    def next_s(self) -> float | None:
        """Return the time of the next attempt in seconds since the epoch; None if no delivery waits."""
        waits = sa.select(_D.c.id).where(_D.c.tenant == _N.c.tenant, _D.c.name == _N.c.name).exists()
        with self._database.reading() as connection:
            found = connection.execute(sa.select(sa.func.min(_N.c.next_at)).where(waits)).scalar_one_or_none()
        return None if found is None else float(found)

    def taken(self, delivery: Delivery, *, at: float) -> None:
        """Remove a delivery that its receiver has accepted."""
        self._settle(delivery, {"delivered": _N.c.delivered + 1, "last_error": ""}, at=at)

    def refused(self, delivery: Delivery, *, at: float, error: str) -> None:
        """Remove a delivery that its receiver refuses permanently."""
        self._settle(delivery, {"failed": _N.c.failed + 1, "last_error": error[:ERROR_CHARACTERS_MAX]}, at=at)

    def postpone(self, delivery: Delivery, *, at: float, next_at: float, error: str) -> None:
        """Postpone the receiver's queue until ``next_at`` after a failed attempt."""
        change = {
            "tries": _N.c.tries + 1,
            "next_at": next_at,
            "last_at": at,
            "last_error": error[:ERROR_CHARACTERS_MAX],
        }
        with self._database.transaction() as connection:
            connection.execute(sa.update(_N).where(*_of(_N, delivery.tenant, delivery.name)).values(change))

    def trim(self, *, before_s: float) -> int:
        """Remove deliveries older than ``before_s``; return their number. Their receivers count them as dropped."""
        gone = 0
        old = (
            sa.select(_D.c.tenant, _D.c.name, sa.func.count())
            .where(_D.c.at < before_s)
            .group_by(_D.c.tenant, _D.c.name)
        )
        with self._database.transaction() as connection:
            for tenant, name, count in connection.execute(old).all():
                connection.execute(sa.delete(_D).where(*_of(_D, tenant, name), _D.c.at < before_s))
                connection.execute(sa.update(_N).where(*_of(_N, tenant, name)).values(dropped=_N.c.dropped + count))
                gone += count
            oldest = sa.select(_T.c.at).order_by(_T.c.at.desc()).offset(TOLD_MAX).limit(1)
            bound = connection.execute(oldest).scalar_one_or_none()
            if bound is not None:
                connection.execute(sa.delete(_T).where(_T.c.at <= bound))
        return gone

    def _settle(self, delivery: Delivery, change: dict[str, Any], *, at: float) -> None:
        """Remove a delivery and update its receiver's state; does nothing if the delivery does not exist any more.

        Args:
            change: columns of the receiver's state with new values.
        """
        with self._database.transaction() as connection:
            if connection.execute(sa.delete(_D).where(_D.c.id == delivery.id)).rowcount > 0:
                fresh = {"tries": 0, "next_at": 0.0, "last_at": at}
                there = _of(_N, delivery.tenant, delivery.name)
                connection.execute(sa.update(_N).where(*there).values(change | fresh))


def _line_up(connection: sa.Connection, receiver: Notification, notice: Notice) -> bool:
    """Append a delivery of the notice to a receiver's queue. If the queue is full, only count it, and return False."""
    there = _of(_D, receiver.tenant, receiver.name)
    count = connection.execute(sa.select(sa.func.count()).select_from(_D).where(*there)).scalar_one()
    if count >= WAITING_MAX:
        full = sa.update(_N).where(*_of(_N, receiver.tenant, receiver.name)).values(dropped=_N.c.dropped + 1)
        connection.execute(full)
        return False
    number = hashlib.sha256(f"{receiver.tenant}\0{receiver.name}\0{receiver.created_at}\0{notice.id}".encode())
    row = {"id": f"msg_{number.hexdigest()[:40]}", "tenant": receiver.tenant, "name": receiver.name, "at": notice.at}
    connection.execute(sa.insert(_D).values(row | {"notice": msgspec.to_builtins(notice)}))
    return True


def _of(table: sa.Table, tenant: str, name: str) -> tuple[sa.ColumnElement[bool], ...]:
    return (table.c.tenant == tenant, table.c.name == name)


def _known(row: dict[str, Any], waiting: int) -> tuple[Notification, NotificationState]:
    said = {key: row.pop(key) for key in _SETTINGS}
    said |= {"channel": NoticeChannel(said["channel"]), "kinds": tuple(NoticeKind(kind) for kind in said["kinds"])}
    return Notification(**said), NotificationState(**row, waiting=waiting)
