"""The book of allocations: what is held now, kept equal to the journal, the slots and the leases.

Writing goes through ``lifecycle.next_step`` only: grants are journalled before the slot appears, releases after it is
gone, and every sweep looks at the witnesses again. A pool that starts reads the journal and the slots and takes the
same steps, so it ends where the dead one would have.

Changes are not safe for threads by themselves: the agent makes them under its lock. Reading is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from calabash.agent import pages
from calabash.agent.lifecycle import Seen, Step, next_step
from calabash.agent.slots import Slots
from calabash.model.allocation import AllocationRecord, AllocationState, UsageRecord
from calabash.model.device import DeviceUuid
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import AllocationId, ModeName
from calabash.seams.clock import Clock
from calabash.seams.host.files import Lease
from calabash.seams.host.processes import Process, alive
from calabash.seams.store import Store
from calabash.sharing.protocol import HeldSlice

GRANT_GRACE_NS = 10_000_000_000


@dataclass(slots=True)
class Entry:
    """An allocation that is held: its journal record and what only this process knows about it."""

    record: AllocationRecord
    lease: Lease | None
    expires_ns: int
    ending: tuple[str, str] | None = None  # reason, explanation
    gently: bool = False  # its programs are not to be ended, only waited for
    final_usage: list[UsageRecord] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What a sweep did, for events and for whoever waits for room."""

    started: tuple[AllocationRecord, ...] = ()
    released: tuple[AllocationRecord, ...] = ()
    to_end: tuple[AllocationRecord, ...] = ()
    failures: tuple[CalabashError, ...] = ()


class Book:
    """All allocations that are held.

    Args:
        usage_of: final usage records of an allocation, asked once while its slot still exists.
    """

    def __init__(
        self,
        *,
        store: Store,
        slots: Slots,
        clock: Clock,
        usage_of: Callable[[AllocationRecord], Sequence[UsageRecord]] = lambda _: (),
    ) -> None:
        self._store = store
        self._slots = slots
        self._clock = clock
        self._usage_of = usage_of
        self._entries: dict[AllocationId, Entry] = {}
        self._orphans: dict[AllocationId, tuple[Lease, tuple[DeviceUuid, ...]]] = {}
        self._doubtful: dict[AllocationId, CalabashError] = {}

    # -- reading -----------------------------------------------------------------------------------------------

    def records(self) -> list[AllocationRecord]:
        """Everything held, oldest first."""
        return [e.record for e in list(self._entries.values())]

    def get(self, allocation: AllocationId) -> AllocationRecord | None:
        """One that is held."""
        entry = self._entries.get(allocation)
        return entry.record if entry else None

    def ending(self, allocation: AllocationId) -> bool:
        """Whether its end was asked for."""
        entry = self._entries.get(allocation)
        return entry is not None and entry.ending is not None

    def held(self, device: DeviceUuid) -> tuple[list[HeldSlice], ModeName | None]:
        """Slices that are on a device and the mode they gave it; None when it is idle."""
        found: list[HeldSlice] = []
        mode: ModeName | None = None
        for entry in list(self._entries.values()):
            record = entry.record
            for part in record.placement.slices:
                if part.device == device:
                    found.append(HeldSlice(slice=part, policy=record.request.policy))
                    mode = record.placement.mode
        return found, mode

    def orphaned(self, device: DeviceUuid) -> list[AllocationId]:
        """Users of the device that the journal knows nothing of; it takes no new work before they are gone."""
        return [a for a, (_, devices) in list(self._orphans.items()) if device in devices]

    # -- granting ----------------------------------------------------------------------------------------------

    def grant(self, record: AllocationRecord, spec: pages.SlotSpec) -> AllocationRecord:
        """Journal, then make the slot. Raises CalabashError and then holds nothing (DISK_FULL, STORE_UNAVAILABLE)."""
        record = replace(record, state=AllocationState.GRANTED, slot=str(self._slots.path(record.id)))
        try:
            self._store.grant(record)
            self._slots.create(spec)
            lease = self._slots.lease(record.id)
        except BaseException as error:
            # Whether the journal has it is not known after a lost connection: close it until that succeeds.
            self._slots.remove(record.id)
            cause = error if isinstance(error, CalabashError) else CalabashError(str(error), reason=Reason.CONFLICT)
            self._doubtful[record.id] = cause
            self._close_doubtful([])
            raise
        self._entries[record.id] = Entry(record, lease, self._clock.monotonic_ns() + GRANT_GRACE_NS)
        return record

    def end(self, allocation: AllocationId, *, reason: str, explanation: str, gently: bool = False) -> bool:
        """Ask for the end of an allocation; its programs are ended, then it is released. False when not held.

        Args:
            gently: its programs are about to end by themselves and are not to be told.
        """
        entry = self._entries.get(allocation)
        if entry is None:
            return False
        entry.gently = gently and (entry.ending is None or entry.gently)
        entry.ending = entry.ending or (reason, explanation)
        return True

    def started(self, allocation: AllocationId, program: Process | None) -> AllocationRecord | None:
        """The program runs; it counts as a user as long as it lives, whatever it does with the lease it inherited.

        None when the allocation is not held any more.
        """
        entry = self._entries.get(allocation)
        if entry is None or entry.ending:
            return None
        if program is not None:
            self._store.set_program(allocation, pid=program.pid, start_time=program.start_time)
            entry.record = replace(entry.record, program_pid=program.pid, program_start_time=program.start_time)
        if entry.record.state is AllocationState.GRANTED:
            self._mark_running(entry)
        return entry.record

    # -- keeping -----------------------------------------------------------------------------------------------

    def recover(self) -> Changes:
        """Adopt what the journal and the slots say; called once, before anything is granted."""
        self._slots.sweep()
        entered = {r.id: r for r in self._store.allocations()}
        now_ns = self._clock.monotonic_ns()
        for record in entered.values():
            self._entries[record.id] = Entry(record, self._lease(record.id), now_ns + GRANT_GRACE_NS)
        for allocation in self._slots.all():
            if allocation not in entered:
                lease = self._lease(allocation)
                if lease is None or not lease.held():
                    self._slots.remove(allocation)
                else:
                    self._orphans[allocation] = (lease, self._devices_of(allocation))
        return self.sweep()

    def sweep(self) -> Changes:
        """Look at every witness again and take the steps that follow."""
        started: list[AllocationRecord] = []
        released: list[AllocationRecord] = []
        to_end: list[AllocationRecord] = []
        failures: list[CalabashError] = []
        self._close_doubtful(failures)
        for entry in list(self._entries.values()):
            try:
                self._settle(entry, started, released, to_end)
            except CalabashError as error:
                failures.append(error)  # tried again at the next sweep
        for allocation, (lease, _) in list(self._orphans.items()):
            if not lease.held():
                lease.close()
                self._slots.remove(allocation)
                del self._orphans[allocation]
        return Changes(started=tuple(started), released=tuple(released), to_end=tuple(to_end), failures=tuple(failures))

    def _settle(
        self,
        entry: Entry,
        started: list[AllocationRecord],
        released: list[AllocationRecord],
        to_end: list[AllocationRecord],
    ) -> None:
        while True:
            record = entry.record
            step = next_step(self._look(entry))
            if step is Step.MARK_RUNNING:
                self._mark_running(entry)
                started.append(entry.record)
            elif step is Step.END_PROGRAMS:
                if not entry.gently:
                    to_end.append(record)
                return
            elif step is Step.REMOVE_SLOT:
                if not self._remove_slot(entry):
                    return
            elif step is Step.CLOSE_ENTRY:
                reason, explanation = entry.ending or _ended_by_itself(record)
                ended_at = self._clock.now_s()
                self._store.release(
                    record.id, at=ended_at, reason=reason, explanation=explanation, usage=entry.final_usage
                )
                del self._entries[record.id]
                released.append(
                    replace(
                        record,
                        state=AllocationState.RELEASED,
                        ended_at=ended_at,
                        reason=reason,
                        explanation=explanation,
                    )
                )
                return
            else:
                return

    def _look(self, entry: Entry) -> Seen:
        record = entry.record
        if entry.lease is None and self._slots.exists(record.id):
            entry.lease = self._lease(record.id)
        return Seen(
            entry=record.state,
            slot=self._slots.exists(record.id),
            lease_held=entry.lease is not None and (entry.lease.held() or alive(program_of(record))),
            awaited=record.state is AllocationState.GRANTED and self._awaited(entry),
            ending=entry.ending is not None,
        )

    def _awaited(self, entry: Entry) -> bool:
        """Whether the asker is still there and has time."""
        record = entry.record
        client = Process(pid=record.client_pid, start_time=record.client_start_time)
        return self._clock.monotonic_ns() < entry.expires_ns and (record.client_pid <= 0 or alive(client))

    def _mark_running(self, entry: Entry) -> None:
        now_s = self._clock.now_s()
        self._store.start(entry.record.id, at=now_s)
        entry.record = replace(entry.record, state=AllocationState.RUNNING, started_at=now_s)

    def _remove_slot(self, entry: Entry) -> bool:
        """False when somebody has come after all."""
        record = entry.record
        if entry.lease is not None and not entry.lease.try_take():
            return False
        if not entry.final_usage:
            entry.final_usage = list(self._usage_of(record))
        self._slots.remove(record.id)
        if entry.lease is not None:
            entry.lease.close()
            entry.lease = None
        return True

    def _close_doubtful(self, failures: list[CalabashError]) -> None:
        for allocation, cause in list(self._doubtful.items()):
            try:
                self._store.release(allocation, at=self._clock.now_s(), reason=cause.reason, explanation=cause.message)
            except CalabashError as error:
                failures.append(error)
            else:
                del self._doubtful[allocation]

    def _lease(self, allocation: AllocationId) -> Lease | None:
        with contextlib.suppress(OSError):
            return self._slots.lease(allocation)
        return None

    def _devices_of(self, allocation: AllocationId) -> tuple[DeviceUuid, ...]:
        try:
            return pages.LimitsPage.of_slot(self._slots.path(allocation)).uuids
        except CalabashError:
            return ()


def program_of(record: AllocationRecord) -> Process:
    """The program that said it runs; pid 0 when none has."""
    return Process(pid=record.program_pid, start_time=record.program_start_time)


def _ended_by_itself(record: AllocationRecord) -> tuple[str, str]:
    if record.state is AllocationState.GRANTED:
        return Reason.TIMEOUT, "nobody took the slice"
    return "ended", "its last process ended"


def devices_of(records: Iterable[AllocationRecord]) -> set[DeviceUuid]:
    """All devices that these allocations have a slice of."""
    return {part.device for record in records for part in record.placement.slices}
