"""The journal over SQLAlchemy: one short transaction for each call, and writes that can be repeated.

If a write fails and its outcome is unknown, for example after a crash, the caller repeats it without harm. A grant that
exists is not inserted again, states change only in one direction, and usage records are unique by number.
"""

from __future__ import annotations

import hashlib
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
from calabash.adapters.store.retention import Retention, trim
from calabash.adapters.store.tenancy import TenancyTables, TokenTable
from calabash.adapters.store.usage.collected import CollectedUsage
from calabash.adapters.store.usage.outbox import UsageOutbox
from calabash.adapters.store.usage.queries import UsageSums
from calabash.adapters.store.usage.reader import UsageReader
from calabash.adapters.store.usage.removed_usage import RemovedUsage, removed_usage
from calabash.model.allocation import AllocationRecord, AllocationState, EventRecord, UsageRecord
from calabash.model.allocation_lifecycle import ALLOCATION_LIFECYCLE
from calabash.model.message_codec import decode_text, encode_text
from calabash.model.messages import Text
from calabash.model.request import AllocationId, GpuRequest, Placement

EVENT_CHARACTERS_MAX = 4096
_KEPT_CHARACTERS = 50  # of the name of an earlier grant
_HASH_DIGITS = 12


def open_store(url: str) -> Store:
    """Connect, refuse a database of a newer program, and bring an older one up to date.

    Raises CalabashError: STORE_NEWER, STORE_UNAVAILABLE, DISK_FULL.
    """
    database = Database(url)
    try:
        database.bring_up_to_date()
    except BaseException:
        database.close()
        raise
    return Store(database)


class Store:
    """The journal of allocations, usage and events, with the other tables of the database as attributes.

    Safe to use from several threads. Every method may raise CalabashError with STORE_UNAVAILABLE or DISK_FULL; then nothing
    of that call was written.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self.administration = Administration(database)
        self.tenancy = TenancyTables(database)
        self.tokens = TokenTable(database)
        self.usage_sums = UsageSums(database)
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
        """Commit a small write, to check that grants can be journalled. Raises CalabashError if they cannot."""
        self._database.check_writable()

    def trim(self, kept: Retention, *, now_s: float) -> int:
        """Remove one batch of rows beyond the limits of retention; return the number of removed rows."""
        return trim(self._database, kept, now_s=now_s)

    # -- allocations -------------------------------------------------------------------------------------------

    def grant(self, record: AllocationRecord) -> None:
        """Insert a granted allocation; repeating the call changes nothing.

        A released allocation with the same name and an earlier time of grant is renamed first. There may be one because
        allocations are named after their containers, and a container can be created again under the same name.
        """
        values = _allocation_values(record)
        with self._database.transaction() as connection:
            _rename_earlier_grant(connection, record)
            connection.execute(self._database.insert_or_ignore(tables.allocations, ["id"]).values(values))

    def start(self, allocation: AllocationId, *, at: float) -> None:
        """Set a granted allocation RUNNING; do nothing if it is RUNNING or RELEASED."""
        with self._database.transaction() as connection:
            connection.execute(self._advance(allocation, AllocationState.RUNNING).values(started_at=at))

    def note(
        self, allocation: AllocationId, *, program: tuple[int, int] | None = None, end: tuple[str, Text] | None = None
    ) -> None:
        """Store the program of a held allocation, or the cause of its end. Released allocations are not changed.

        Args:
            program: pid and start time.
            end: reason and explanation.
        """
        table, values = tables.allocations, dict[str, object]()
        if program is not None:
            values |= {"program_pid": program[0], "program_start_time": program[1]}
        if end is not None:
            values |= {"reason": end[0], "explanation": encode_text(end[1])}
        change = sa.update(table).where(table.c.id == allocation, table.c.state != AllocationState.RELEASED.value)
        with self._database.transaction() as connection:
            connection.execute(change.values(values))

    def release(
        self, allocation: AllocationId, *, at: float, reason: str, explanation: Text, usage: Sequence[UsageRecord] = ()
    ) -> None:
        """Insert the usage records, and set the allocation RELEASED with its reason.

        If the allocation is RELEASED already, its reason and end are not changed.
        """
        with self._database.transaction() as connection:
            self._put_usage(connection, usage)
            connection.execute(
                self._advance(allocation, AllocationState.RELEASED).values(
                    ended_at=at, reason=reason, explanation=encode_text(explanation)
                )
            )

    def allocations(
        self, *, ended: bool = False, limit: int = 10_000, seen: AllocationsSeen | None = None
    ) -> list[AllocationRecord]:
        """Return allocations in the order of creation.

        Args:
            ended: True to return released allocations, too.
            limit: greatest number of allocations; if there are more, the newest are returned.
            seen: return only allocations that this filter permits.
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
        """Return released allocations that ended before this one, newest first.

        If the allocation is unknown, for example "", the newest of all released allocations are returned.

        Args:
            seen: return only allocations that this filter permits.
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
        """Return the allocation, held or released; None if it is unknown."""
        table = tables.allocations
        with self._database.reading() as connection:
            row = connection.execute(sa.select(table).where(table.c.id == allocation)).mappings().one_or_none()
        return None if row is None else _allocation_record(dict(row))

    def _advance(self, allocation: AllocationId, state: AllocationState) -> sa.Update:
        table = tables.allocations
        earlier = [s.value for s in ALLOCATION_LIFECYCLE.sources(state)]
        return sa.update(table).where(table.c.id == allocation, table.c.state.in_(earlier)).values(state=state.value)

    # -- usage -------------------------------------------------------------------------------------------------

    def add_usage(self, records: Sequence[UsageRecord]) -> None:
        """Insert usage records; a record whose allocation, device and sequence number exist is skipped."""
        if records:
            with self._database.transaction() as connection:
                self._put_usage(connection, records)

    def removed_usage(self) -> RemovedUsage:
        """Return the note about the usage records that retention has removed or merged."""
        with self._database.reading() as connection:
            return removed_usage(connection)

    def usage(self, allocation: AllocationId | None = None) -> list[UsageRecord]:
        """Return usage records in the order of insertion, of one allocation or of all."""
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
        """Insert events in one transaction; ``trim`` bounds their number.

        Args:
            events: ``at`` and ``kind`` of each, and as far as they apply ``reason``, ``allocation``, ``device``, ``message``.
        """
        absent = {"reason": "", "allocation": "", "device": "", "message": ""}
        rows = [
            absent | dict(e) | {"message": encode_text(e.get("message", ""))[:EVENT_CHARACTERS_MAX]} for e in events
        ]
        if rows:
            with self._database.transaction() as connection:
                connection.execute(sa.insert(tables.events), rows)

    def events(self, *, after: int = 0, limit: int = 1000, seen: EventsSeen | None = None) -> list[EventRecord]:
        """Return events, oldest first.

        Args:
            after: only events with a greater number are returned.
            seen: return only events that this filter permits; None for all.
        """
        table = tables.events
        query = sa.select(table).where(table.c.id > after).order_by(table.c.id).limit(limit)
        if seen is not None:
            query = query.where(seen_by(seen))
        with self._database.reading() as connection:
            return [
                EventRecord(**{**row, "message": decode_text(row["message"])})
                for row in connection.execute(query).mappings()
            ]


_PLAIN_FIELDS = tuple(
    f
    for f in AllocationRecord.__dataclass_fields__
    if f not in {"state", "request", "placement", "command", "explanation"}
)


def _allocation_values(record: AllocationRecord) -> dict[str, Any]:
    values: dict[str, Any] = {name: getattr(record, name) for name in _PLAIN_FIELDS}
    return values | {
        "state": record.state.value,
        "command": list(record.command),
        "explanation": encode_text(record.explanation),
        "tenant": record.request.tenant,
        "queue": record.request.queue,
        "request": msgspec.to_builtins(record.request),
        "placement": msgspec.to_builtins(record.placement),
    }


def _allocation_record(row: dict[str, Any]) -> AllocationRecord:
    return AllocationRecord(
        state=AllocationState(row["state"]),
        command=tuple(row["command"]),
        explanation=decode_text(row["explanation"]),
        request=msgspec.convert(row["request"], GpuRequest),
        placement=msgspec.convert(row["placement"], Placement),
        **{name: row[name] for name in _PLAIN_FIELDS},
    )


def _rename_earlier_grant(connection: sa.Connection, record: AllocationRecord) -> None:
    """Rename the released allocation with the name of this grant, if it is an earlier grant.

    The allocation of a container is named after the container, which may be granted slices several times, for example
    after a restart. The journal entry and the usage records of the earlier grant are kept under a new name, because the
    usage records of the new grant are numbered from the beginning again.
    """
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
    """Return the new name of a released allocation: the begin of its old name, and a hash of name and grant time."""
    mark = hashlib.sha256(f"{allocation}/{granted_at!r}".encode()).hexdigest()[:_HASH_DIGITS]
    return f"{allocation[:_KEPT_CHARACTERS]}~{mark}"
