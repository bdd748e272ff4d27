"""Journal of allocations, usage records and events in a database, through SQLAlchemy.

Each call is one short transaction. If a call fails, the caller may not know whether the transaction was committed.
Every write that names an allocation can therefore be repeated without harm: a grant is inserted only once, a state only
moves forward, and a usage record is identified by its number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import msgspec
import sqlalchemy as sa

from calabash.adapters.store import tables
from calabash.adapters.store.administration import Administration
from calabash.adapters.store.audit import AuditTable
from calabash.adapters.store.billing.store import BillingTables
from calabash.adapters.store.database import Database
from calabash.adapters.store.event_filter import AllocationsSeen, EventsSeen, held_by, seen_by
from calabash.adapters.store.networks import NetworkTables
from calabash.adapters.store.notices import NoticeTables
from calabash.adapters.store.renaming import make_way
from calabash.adapters.store.retention import Retention, trim
from calabash.adapters.store.tenancy import TenancyTables, TokenTable
from calabash.adapters.store.usage.collected import CollectedUsage
from calabash.adapters.store.usage.outbox import UsageOutbox
from calabash.adapters.store.usage.queries import UsageBook
from calabash.adapters.store.usage.reader import UsageReader
from calabash.adapters.store.usage.removed_usage import RemovedUsage, removed_usage
from calabash.model.allocation import AllocationRecord, AllocationState, EventRecord, UsageRecord
from calabash.model.request import AllocationId, GpuRequest, Placement

EVENT_CHARACTERS_MAX = 4096
_EARLIER = {
    AllocationState.RUNNING: (AllocationState.GRANTED,),
    AllocationState.RELEASED: (AllocationState.GRANTED, AllocationState.RUNNING),
}


def open_store(url: str) -> Store:
    """Connect to a database, migrate an older schema, and return its store.

    Raises CalabashError: STORE_NEWER if a newer program has written the database, STORE_UNAVAILABLE, DISK_FULL.
    """
    database = Database(url)
    try:
        database.bring_up_to_date()
    except BaseException:
        database.close()
        raise
    return Store(database)


class Store:
    """Journal of allocations, usage records and events, with the tables for all other durable state as attributes.

    Safe for threads. Every method may raise CalabashError with STORE_UNAVAILABLE or DISK_FULL, and then has written
    nothing.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self.administration = Administration(database)
        self.tenancy = TenancyTables(database)
        self.tokens = TokenTable(database)
        self.usage_book = UsageBook(database)
        self.audit = AuditTable(database)
        self.notices = NoticeTables(database)
        self.networks = NetworkTables(database)
        self.billing = BillingTables(database)
        self.usage_reader = UsageReader(database)
        self.outbox = UsageOutbox(database)
        self.collected = CollectedUsage(database)

    @property
    def url(self) -> str:
        return self._database.url

    def close(self) -> None:
        self._database.close()

    def check_writable(self) -> None:
        """Check that the database can be written, by a committed write. Without it, no grant could be journalled."""
        self._database.check_writable()

    def trim(self, kept: Retention, *, now_s: float) -> int:
        """Remove one small batch of rows beyond the limits; return the number of removed rows. See ``retention``."""
        return trim(self._database, kept, now_s=now_s)

    # -- allocations -------------------------------------------------------------------------------------------

    def grant(self, record: AllocationRecord) -> None:
        """Journal the grant of an allocation; repeating it changes nothing.

        If a released allocation has the same name, because a container was started again, that one is renamed.
        """
        values = _allocation_values(record)
        with self._database.transaction() as connection:
            make_way(connection, record)
            connection.execute(self._database.insert_or_ignore(tables.allocations, ["id"]).values(values))

    def start(self, allocation: AllocationId, *, at: float) -> None:
        """Move an allocation from GRANTED to RUNNING; does nothing if it is in a later state already."""
        with self._database.transaction() as connection:
            connection.execute(self._advance(allocation, AllocationState.RUNNING).values(started_at=at))

    def note(
        self, allocation: AllocationId, *, program: tuple[int, int] | None = None, end: tuple[str, str] | None = None
    ) -> None:
        """Store facts about a held allocation that a restarted pool needs.

        Args:
            allocation: ID of the allocation.
            program: process ID and start time of its program; None: unchanged.
            end: reason and explanation if the allocation is being ended; None: unchanged.
        """
        table, values = tables.allocations, dict[str, object]()
        if program is not None:
            values |= {"program_pid": program[0], "program_start_time": program[1]}
        if end is not None:
            values |= {"reason": end[0], "explanation": end[1]}
        change = sa.update(table).where(table.c.id == allocation, table.c.state != AllocationState.RELEASED.value)
        with self._database.transaction() as connection:
            connection.execute(change.values(values))

    def release(
        self, allocation: AllocationId, *, at: float, reason: str, explanation: str, usage: Sequence[UsageRecord] = ()
    ) -> None:
        """Move an allocation to RELEASED, unless it is released already, and store its last usage records.

        Args:
            allocation: ID of the allocation.
            at: time of the release in seconds since the epoch.
            reason: code of the reason.
            explanation: the reason in words.
            usage: usage records that are not stored yet.
        """
        with self._database.transaction() as connection:
            self._put_usage(connection, usage)
            connection.execute(
                self._advance(allocation, AllocationState.RELEASED).values(
                    ended_at=at, reason=reason, explanation=explanation
                )
            )

    def allocations(
        self, *, ended: bool = False, limit: int = 10_000, seen: AllocationsSeen | None = None
    ) -> list[AllocationRecord]:
        """Return allocations in order of creation; if there are more than ``limit``, the newest ones.

        Args:
            ended: also return released allocations.
            limit: greatest number of allocations.
            seen: allocations that may be returned; None for all.
        """
        table = tables.allocations
        query = sa.select(table).order_by(table.c.created_at.desc(), table.c.id).limit(limit)
        if not ended:
            query = query.where(table.c.state != AllocationState.RELEASED.value)
        if seen is not None:
            query = query.where(held_by(seen))
        with self._database.reading() as connection:
            rows = connection.execute(query).mappings().all()
        return [_allocation_record(dict(row)) for row in reversed(rows)]

    def ended_before(
        self, allocation: AllocationId, *, limit: int, seen: AllocationsSeen | None = None
    ) -> list[AllocationRecord]:
        """Return a page of released allocations, the last ended first.

        Args:
            allocation: ID after which the page begins; an unknown ID gives the first page.
            limit: greatest number of allocations.
            seen: allocations that may be returned; None for all.
        """
        table = tables.allocations
        query = sa.select(table).where(table.c.state == AllocationState.RELEASED.value)
        if seen is not None:
            query = query.where(held_by(seen))
        query = query.order_by(table.c.ended_at.desc(), table.c.id.desc()).limit(limit)
        with self._database.reading() as connection:
            mark = connection.execute(sa.select(table.c.ended_at).where(table.c.id == allocation)).scalar_one_or_none()
            if mark is not None:
                query = query.where(sa.tuple_(table.c.ended_at, table.c.id) < sa.tuple_(sa.literal(mark), allocation))
            return [_allocation_record(dict(row)) for row in connection.execute(query).mappings()]

    def allocation(self, allocation: AllocationId) -> AllocationRecord | None:
        """Return an allocation, held or released; None if the journal does not have it."""
        table = tables.allocations
        with self._database.reading() as connection:
            row = connection.execute(sa.select(table).where(table.c.id == allocation)).mappings().one_or_none()
        return None if row is None else _allocation_record(dict(row))

    def _advance(self, allocation: AllocationId, state: AllocationState) -> sa.Update:
        table = tables.allocations
        earlier = [s.value for s in _EARLIER[state]]
        return sa.update(table).where(table.c.id == allocation, table.c.state.in_(earlier)).values(state=state.value)

    # -- usage -------------------------------------------------------------------------------------------------

    def add_usage(self, records: Sequence[UsageRecord]) -> None:
        """Store usage records. A record whose number is stored already is left unchanged."""
        if records:
            with self._database.transaction() as connection:
                self._put_usage(connection, records)

    def removed_usage(self) -> RemovedUsage:
        """Return up to which time retention has removed or merged usage records."""
        with self._database.reading() as connection:
            return removed_usage(connection)

    def usage(self, allocation: AllocationId | None = None) -> list[UsageRecord]:
        """Return the usage records of one allocation, or of all (None), in the order in which they were stored."""
        table = tables.usage
        query = sa.select(*(c for c in table.c if c.name != "id")).order_by(table.c.id)
        if allocation is not None:
            query = query.where(table.c.allocation == allocation)
        with self._database.transaction() as connection:
            return [UsageRecord(**row) for row in connection.execute(query).mappings()]

    def _put_usage(self, connection: sa.Connection, records: Sequence[UsageRecord]) -> None:
        for record in records:
            statement = self._database.insert_or_ignore(tables.usage, ["allocation", "device", "sequence"])
            connection.execute(statement.values(asdict(record)))

    # -- events ------------------------------------------------------------------------------------------------

    def add_events(self, events: Sequence[Mapping[str, Any]]) -> None:
        """Store events in one transaction. Old events are removed by :meth:`trim`.

        Args:
            events: each has the fields ``at`` (seconds since the epoch) and ``kind``, and those of ``reason``,
                ``allocation``, ``device`` and ``message`` that apply.
        """
        absent = {"reason": "", "allocation": "", "device": "", "message": ""}
        rows = [absent | dict(e) | {"message": str(e.get("message", ""))[:EVENT_CHARACTERS_MAX]} for e in events]
        if rows:
            with self._database.transaction() as connection:
                connection.execute(sa.insert(tables.events), rows)

    def events(self, *, after: int = 0, limit: int = 1000, seen: EventsSeen | None = None) -> list[EventRecord]:
        """Return events, oldest first.

        Args:
            after: number of an event; only later events are returned.
            limit: greatest number of events.
            seen: events that may be returned; None for all.
        """
        table = tables.events
        query = sa.select(table).where(table.c.id > after).order_by(table.c.id).limit(limit)
        if seen is not None:
            query = query.where(seen_by(seen))
        with self._database.reading() as connection:
            return [EventRecord(**row) for row in connection.execute(query).mappings()]


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
