"""The store over SQLAlchemy: one short transaction per call, every write idempotent so that a crash can repeat it.

SQLite runs with a write-ahead log and ``synchronous=FULL``: a commit that returned survives a power cut. PostgreSQL
gives the same by default. A write that names an allocation can be repeated after an uncertain failure: grants insert
or do nothing, state changes only move forward, usage records are unique per interval.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError

from calabash.model.allocation import AllocationRecord, AllocationState, EventRecord, QueueRecord, UsageRecord
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import AllocationId, GpuRequest, Placement
from calabash.seams.store import tables
from calabash.seams.store.errors import public_url, translated

BUSY_TIMEOUT_S = 5
EVENTS_KEPT = 20_000
_EARLIER = {
    AllocationState.RUNNING: (AllocationState.GRANTED,),
    AllocationState.RELEASED: (AllocationState.GRANTED, AllocationState.RUNNING),
}


def open_store(url: str) -> Store:
    """Connect, refuse a database of a newer program, and bring an older one up to date.

    Raises CalabashError: STORE_NEWER, STORE_UNAVAILABLE, DISK_FULL.
    """
    engine = _engine(url)
    store = Store(engine, url)
    try:
        found = store.schema_version()
        if found > tables.SCHEMA_VERSION:
            raise CalabashError(
                f"database {public_url(url)} has schema {found}, this program knows {tables.SCHEMA_VERSION}",
                reason=Reason.STORE_NEWER,
                hint="use the newer calabash that wrote it, or another database with --db",
            )
        if found < tables.SCHEMA_VERSION:
            store.migrate()
    except BaseException:
        store.close()
        raise
    return store


def _engine(url: str) -> sa.Engine:
    try:
        parsed = sa.make_url(url)
    except sa.exc.ArgumentError:
        raise CalabashError(
            "the database URL cannot be read", hint="write sqlite:///PATH or postgresql://USER@HOST/NAME"
        ) from None
    backend = parsed.get_backend_name()
    if backend == "sqlite":
        engine = sa.create_engine(parsed, connect_args={"timeout": BUSY_TIMEOUT_S})
        sa.event.listen(engine, "connect", _prepare_sqlite)
        # The driver's own BEGIN comes late and would let DDL escape the transaction.
        sa.event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
        return engine
    if backend == "postgresql":
        return sa.create_engine(
            parsed.set(drivername="postgresql+psycopg"),
            pool_pre_ping=True,
            pool_size=2,
            connect_args={"connect_timeout": 5, "application_name": "calabash", "client_encoding": "utf8"},
        )
    raise CalabashError(
        f"database kind {backend!r} is not supported", hint="write sqlite:///PATH or postgresql://USER@HOST/NAME"
    )


def _prepare_sqlite(connection: sqlite3.Connection, _record: object) -> None:
    connection.isolation_level = None
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA foreign_keys=ON")


class Store:
    """The journal and its companions. Safe to use from several threads. Every method may raise CalabashError with
    STORE_UNAVAILABLE or DISK_FULL; then nothing of that call was written."""

    def __init__(self, engine: sa.Engine, url: str) -> None:
        self._engine = engine
        self.url = url

    @contextmanager
    def _transaction(self) -> Iterator[sa.Connection]:
        try:
            with self._engine.begin() as connection:
                yield connection
        except DBAPIError as error:
            raise translated(error, self.url) from error

    def close(self) -> None:
        self._engine.dispose()

    # -- schema ------------------------------------------------------------------------------------------------

    def schema_version(self) -> int:
        """0 for an empty database."""
        with self._transaction() as connection:
            if not sa.inspect(connection).has_table("meta"):
                return 0
            query = sa.select(tables.meta.c.value).where(tables.meta.c.key == "schema_version")
            value = connection.execute(query).scalar_one_or_none()
        try:
            return int(value or 0)
        except ValueError:
            raise CalabashError(
                f"database {public_url(self.url)} has schema {value!r}, which is not a number",
                reason=Reason.STORE_UNAVAILABLE,
                hint="it is not a Calabash database, or it was changed by hand",
            ) from None

    def migrate(self) -> None:
        """Apply the missing revisions; all or nothing."""
        # Alembic takes a third of a second to import and is needed only here.
        from alembic import command  # noqa: PLC0415
        from alembic.config import Config  # noqa: PLC0415

        config = Config()
        config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
        config.set_main_option("path_separator", "os")
        with self._transaction() as connection:
            config.attributes["connection"] = connection
            command.upgrade(config, "head")

    def check_writable(self) -> None:
        """Prove by a committed write that grants could be journalled."""
        with self._transaction() as connection:
            connection.execute(sa.delete(tables.meta).where(tables.meta.c.key == "probe"))
            connection.execute(sa.insert(tables.meta).values(key="probe", value="x" * 512))

    # -- allocations -------------------------------------------------------------------------------------------

    def grant(self, record: AllocationRecord) -> None:
        """Journal a grant; repeating it changes nothing."""
        values = _allocation_values(record)
        with self._transaction() as connection:
            connection.execute(self._insert_or_ignore(tables.allocations, ["id"]).values(values))

    def start(self, allocation: AllocationId, *, at: float) -> None:
        """GRANTED -> RUNNING; nothing when it is already further."""
        with self._transaction() as connection:
            connection.execute(self._advance(allocation, AllocationState.RUNNING).values(started_at=at))

    def set_program(self, allocation: AllocationId, *, pid: int, start_time: int) -> None:
        """Remember the program of a held allocation."""
        table = tables.allocations
        change = sa.update(table).where(table.c.id == allocation, table.c.state != AllocationState.RELEASED.value)
        with self._transaction() as connection:
            connection.execute(change.values(program_pid=pid, program_start_time=start_time))

    def release(
        self, allocation: AllocationId, *, at: float, reason: str, explanation: str, usage: Sequence[UsageRecord] = ()
    ) -> None:
        """-> RELEASED together with its usage records; nothing when it is released already."""
        with self._transaction() as connection:
            self._put_usage(connection, usage)
            connection.execute(
                self._advance(allocation, AllocationState.RELEASED).values(
                    ended_at=at, reason=reason, explanation=explanation
                )
            )

    def allocations(self, *, ended: bool = False, limit: int = 10_000) -> list[AllocationRecord]:
        """Held allocations in order of creation; with ``ended`` the released ones as well, newest ``limit``."""
        table = tables.allocations
        query = sa.select(table).order_by(table.c.created_at.desc(), table.c.id).limit(limit)
        if not ended:
            query = query.where(table.c.state != AllocationState.RELEASED.value)
        with self._transaction() as connection:
            rows = connection.execute(query).mappings().all()
        return [_allocation_record(dict(row)) for row in reversed(rows)]

    def allocation(self, allocation: AllocationId) -> AllocationRecord | None:
        """One entry of the journal."""
        table = tables.allocations
        with self._transaction() as connection:
            row = connection.execute(sa.select(table).where(table.c.id == allocation)).mappings().one_or_none()
        return None if row is None else _allocation_record(dict(row))

    def _advance(self, allocation: AllocationId, state: AllocationState) -> sa.Update:
        table = tables.allocations
        earlier = [s.value for s in _EARLIER[state]]
        return sa.update(table).where(table.c.id == allocation, table.c.state.in_(earlier)).values(state=state.value)

    # -- usage -------------------------------------------------------------------------------------------------

    def add_usage(self, records: Sequence[UsageRecord]) -> None:
        """Write intervals; one that is there already is left alone."""
        with self._transaction() as connection:
            self._put_usage(connection, records)

    def usage(self, allocation: AllocationId | None = None) -> list[UsageRecord]:
        """Intervals in order of writing, of one allocation or of all."""
        table = tables.usage
        query = sa.select(*(c for c in table.c if c.name != "id")).order_by(table.c.id)
        if allocation is not None:
            query = query.where(table.c.allocation == allocation)
        with self._transaction() as connection:
            return [UsageRecord(**row) for row in connection.execute(query).mappings()]

    def _put_usage(self, connection: sa.Connection, records: Sequence[UsageRecord]) -> None:
        for record in records:
            statement = self._insert_or_ignore(tables.usage, ["allocation", "device", "from_s"])
            connection.execute(statement.values(asdict(record)))

    # -- queues ------------------------------------------------------------------------------------------------

    def put_queue(self, record: QueueRecord) -> None:
        """Create the queue or replace its numbers."""
        with self._transaction() as connection:
            connection.execute(sa.delete(tables.queues).where(tables.queues.c.name == record.name))
            connection.execute(sa.insert(tables.queues).values(asdict(record)))

    def delete_queue(self, name: str) -> bool:
        """False when there was none."""
        with self._transaction() as connection:
            result = connection.execute(sa.delete(tables.queues).where(tables.queues.c.name == name))
            return result.rowcount > 0

    def queues(self) -> list[QueueRecord]:
        """All queues by name."""
        with self._transaction() as connection:
            rows = connection.execute(sa.select(tables.queues).order_by(tables.queues.c.name)).mappings()
            return [QueueRecord(**row) for row in rows]

    # -- events ------------------------------------------------------------------------------------------------

    def add_event(
        self, *, at: float, kind: str, reason: str = "", allocation: str = "", device: str = "", message: str = ""
    ) -> None:
        """Tell what happened; the oldest events go when there are more than EVENTS_KEPT."""
        table = tables.events
        values = {"at": at, "kind": kind, "reason": reason, "allocation": allocation, "device": device}
        with self._transaction() as connection:
            key = connection.execute(sa.insert(table).values(**values, message=message[:4096])).inserted_primary_key
            if key is not None and key[0] % 1000 == 0:
                connection.execute(sa.delete(table).where(table.c.id <= key[0] - EVENTS_KEPT))

    def events(self, *, after: int = 0, limit: int = 1000) -> list[EventRecord]:
        """Events younger than ``after``, oldest first."""
        table = tables.events
        query = sa.select(table).where(table.c.id > after).order_by(table.c.id).limit(limit)
        with self._transaction() as connection:
            return [EventRecord(**row) for row in connection.execute(query).mappings()]

    def _insert_or_ignore(self, table: sa.Table, keys: Sequence[str]) -> Any:
        if self._engine.dialect.name == "postgresql":
            return postgresql.insert(table).on_conflict_do_nothing(index_elements=keys)
        return sqlite.insert(table).on_conflict_do_nothing(index_elements=keys)


_PLAIN_FIELDS = tuple(
    f for f in AllocationRecord.__dataclass_fields__ if f not in {"state", "request", "placement", "command"}
)


def _allocation_values(record: AllocationRecord) -> dict[str, Any]:
    values: dict[str, Any] = {name: getattr(record, name) for name in _PLAIN_FIELDS}
    return values | {
        "state": record.state.value,
        "command": list(record.command),
        "tenant": record.request.tenant,
        "queue": record.request.queue,
        "request": msgspec.to_builtins(record.request),
        "placement": msgspec.to_builtins(record.placement),
    }


def _allocation_record(row: dict[str, Any]) -> AllocationRecord:
    return AllocationRecord(
        state=AllocationState(row["state"]),
        command=tuple(row["command"]),
        request=msgspec.convert(row["request"], GpuRequest),
        placement=msgspec.convert(row["placement"], Placement),
        **{name: row[name] for name in _PLAIN_FIELDS},
    )
