"""The allocations that are held now, kept equal to the journal, the slots and who is a member.

Writing goes through ``lifecycle.next_step`` only: grants are journalled before the slot appears, releases after it is
gone, and every sweep looks at the witnesses again. A pool that starts reads the journal and the slots and takes the
same steps, so it ends where the dead one would have.

Changes are not safe for threads by themselves: the agent makes them under its lock. Reading is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Protocol

from calabash.adapters.clock import Clock
from calabash.adapters.host.processes import Process
from calabash.adapters.store import Store
from calabash.model.allocation import AllocationRecord, AllocationState, UsageRecord
from calabash.model.device import DeviceUuid
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import AllocationId, ModeName
from calabash.node.allocations.lifecycle import LifecycleStep, Seen, next_step
from calabash.node.allocations.orphans import Orphans
from calabash.node.allocations.retention import RequesterTenure, Tenure
from calabash.node.allocations.uncertain_entries import DoubtfulEntries
from calabash.node.membership.protocol import Membership
from calabash.node.slots.content import SlotSpec
from calabash.node.slots.names import SlotNames
from calabash.node.slots.protocol import Slots
from calabash.sharing.protocol import HeldSlice
from calabash.sharing.registry import mode_of_device

LOOK_AT_ALL_NS = (
    5_000_000_000  # what no member tells, such as a slot that an operator has removed, is found after so long
)


@dataclass(slots=True)
class _Held:
    """An allocation that is held: its journal record and what only this process knows about it."""

    record: AllocationRecord
    since_ns: int
    ending: tuple[str, str] | None = None  # reason, explanation
    end_noted: bool = False  # the journal has why it ends
    gently: bool = False  # its programs are not to be ended, only waited for
    making: bool = False  # its mode is making what it needs; it has no slot yet
    adopted: bool = False  # granted by a pool before this one, which may not have lived to write its start down
    start_unwritten: bool = False  # the journal hears of the start at the next sweep; a crash would see it again
    final_usage: Sequence[UsageRecord] | None = None
    populated: bool = False  # it had a live member at the last look

    def last_usage(self, usage_of: Callable[[AllocationRecord], Sequence[UsageRecord]]) -> Sequence[UsageRecord]:
        """Asked once: a store that failed is given the same."""
        if self.final_usage is None:
            self.final_usage = usage_of(self.record)
        return self.final_usage

    def note_end(self, store: Store) -> Sequence[CalabashError]:
        """Journal why, before its programs are ended: they may be gone when the next pool looks, and their user asks why. A
        journal that cannot be written keeps nobody running; what it failed of."""
        if self.ending is None or self.end_noted:
            return ()
        try:
            store.note(self.record.id, end=self.ending)
        except CalabashError as error:
            return (error,)
        self.end_noted = True
        return ()

    def awaited(self, tenure: Tenure, clock: Clock) -> bool:
        """Whether somebody may still come for it."""
        return tenure.holds(self.record, clock.monotonic_ns() - self.since_ns)

    @property
    def why_it_ends(self) -> tuple[str, str]:
        """Reason and explanation."""
        if self.ending is not None:
            return self.ending
        if self.record.state is AllocationState.GRANTED and self.adopted:
            return "ended", "nobody was in the slice when a new pool looked"
        if self.record.state is AllocationState.GRANTED:
            return Reason.TIMEOUT, "nobody took the slice"
        return "ended", "its last process ended"


@dataclass(slots=True, kw_only=True)
class Changes:
    """What a sweep did, for events and for whoever waits for room."""

    started: list[AllocationRecord] = field(default_factory=list)
    released: list[AllocationRecord] = field(default_factory=list)
    to_end: list[AllocationRecord] = field(default_factory=list)
    failures: list[CalabashError] = field(default_factory=list)


class Occupied(Protocol):
    """Whether devices still list something of an allocation; ``occupancy`` asks the drivers."""

    def clear(self, record: AllocationRecord) -> bool: ...

    def forget(self, allocation: AllocationId) -> None: ...


class Allocations:
    """All allocations that are held.

    Args:
        usage_of: last usage records of an allocation, asked once, while its slot still exists if it ever had one.
        names: what slots are called, shared with all that exists for an allocation under a name.
        tenure: how long an allocation is kept that nobody uses; by default as long as its requester may still come.
        boot: the boot of this machine whose monotonic clock ``clock`` has.
    """

    def __init__(
        self,
        *,
        store: Store,
        slots: Slots,
        membership: Membership,
        clock: Clock,
        occupancy: Occupied,
        usage_of: Callable[[AllocationRecord], Sequence[UsageRecord]] = lambda _: (),
        names: SlotNames | None = None,
        tenure: Tenure | None = None,
        boot: str = "",
    ) -> None:
        self._names = names or SlotNames()
        self._store, self._slots, self._membership = store, slots, membership
        self._clock, self._boot = clock, boot
        self._usage_of, self._occupancy = usage_of, occupancy
        self._tenure = tenure or RequesterTenure()
        self._held: dict[AllocationId, _Held] = {}
        self._orphans, self._doubtful = Orphans(slots, membership), DoubtfulEntries(store, clock)
        self._look_at_all_ns = 0
        self._unsettled: set[AllocationId] = set()
        self._changes = 0  # how often an allocation came or went
        self._devices: tuple[int, dict[DeviceUuid, DeviceHeld]] | None = None  # and the count of changes that it is of

    def records(self) -> list[AllocationRecord]:
        """Everything held, oldest first."""
        return [e.record for e in list(self._held.values())]

    def by_device(self) -> Mapping[DeviceUuid, DeviceHeld]:
        """Return what is held of each device of which anything is held. Under the lock."""
        if self._devices is None or self._devices[0] != self._changes:
            self._devices = (self._changes, _by_device(self.records()))
        return self._devices[1]

    def get(self, allocation: AllocationId) -> AllocationRecord | None:
        """One that is held."""
        return entry.record if (entry := self._held.get(allocation)) else None

    def making(self, allocation: AllocationId) -> bool:
        """Whether its mode is still making what it needs."""
        return bool((entry := self._held.get(allocation)) and entry.making)

    def ending(self, allocation: AllocationId) -> tuple[str, str] | None:
        """Reason and explanation with which its end was asked for; None: it was not."""
        return entry.ending if (entry := self._held.get(allocation)) else None

    def lives(self, allocation: AllocationId) -> bool:
        """Whether it has a live member or somebody may still come for it; one that only waits for a driver does not."""
        entry = self._held.get(allocation)
        return entry is not None and (
            self._membership.populated(allocation) or entry.awaited(self._tenure, self._clock)
        )

    def orphaned(self, device: DeviceUuid) -> list[AllocationId]:
        """Users of the device that the journal knows nothing of; it takes no new work before they are gone."""
        return self._orphans.on(device)

    def hold(self, record: AllocationRecord) -> AllocationRecord:
        """Journal it: its room is held from now on, and ``grant`` or ``give_up`` follows. Raises CalabashError and then
        holds nothing (DISK_FULL, STORE_UNAVAILABLE)."""
        self._names.assign(record.id)
        slot, now_ns = str(self._slots.path(record.id)), self._clock.monotonic_ns()
        record = replace(record, state=AllocationState.GRANTED, slot=slot, granted_ns=now_ns, boot=self._boot)
        try:
            self._store.grant(record)
        except BaseException as error:
            self._withdraw(record.id, error)
            raise
        self._held[record.id] = _Held(record, now_ns, making=True)
        self._came_or_went(record.id)
        return record

    def grant(self, spec: SlotSpec) -> AllocationRecord:
        """Make the slot of one that is held. Raises CalabashError and then holds nothing: what the slot could not be
        made for, or CONFLICT when its end was asked for meanwhile."""
        entry = self._held[spec.allocation]
        try:
            if entry.ending:
                raise CalabashError(f"allocation {entry.record.id}: {entry.ending[1]}", reason=Reason.CONFLICT)
            self._slots.create(spec)
            self._membership.prepare(spec.allocation)
            self._slots.bind(spec.allocation, self._membership.group(spec.allocation))
        except BaseException as error:
            self.give_up(spec.allocation, error)
            raise
        entry.making, entry.since_ns = False, self._clock.monotonic_ns()
        return entry.record

    def give_up(self, allocation: AllocationId, error: BaseException) -> None:
        """What it needs could not be made: it is released."""
        del self._held[allocation]
        self._came_or_went(allocation)
        self._withdraw(allocation, error)

    def _withdraw(self, allocation: AllocationId, error: BaseException) -> None:
        """Whether the journal has it is not known after a lost connection."""
        self._membership.remove(allocation)
        self._slots.remove(allocation)
        self._names.retire(allocation)
        self._doubtful.add(allocation, error)

    def end(self, allocation: AllocationId, *, reason: str, explanation: str, gently: bool = False) -> bool:
        """Ask for the end of an allocation; its programs are ended, then it is released. False when not held. ``gently``:
        its programs are about to end by themselves and are not to be told."""
        if (entry := self._held.get(allocation)) is None:
            return False
        self._unsettled.add(allocation)
        entry.gently = gently and (entry.ending is None or entry.gently)
        entry.ending = entry.ending or (reason, explanation)
        return True

    def started(self, allocation: AllocationId, program: Process | None) -> AllocationRecord | None:
        """The program is a member and runs; None when the allocation is not held any more."""
        entry = self._held.get(allocation)
        if entry is None or entry.ending or entry.making:
            return None
        if program is not None:
            if self._membership.form == "lease":  # the kernel remembers by itself who the program is
                self._store.note(allocation, program=(program.pid, program.start_time))
            entry.record = replace(entry.record, program_pid=program.pid, program_start_time=program.start_time)
        if entry.record.state is AllocationState.GRANTED:
            # Whoever starts does not wait for the disk: that it runs is seen again after a crash.
            entry.record = replace(entry.record, state=AllocationState.RUNNING, started_at=self._clock.now_s())
            entry.start_unwritten = True
            self._unsettled.add(allocation)
        return entry.record

    def learn_names(self, entered: Iterable[AllocationRecord]) -> None:
        """Take over what the slots of these records are called, before anything of them is opened."""
        for record in entered:
            self._names.adopt(record.id, PurePath(record.slot).name)

    def recover(self) -> Changes:
        """Adopt what the journal, the slots and the members say; called once, before anything is granted."""
        entered = {r.id: r for r in self._store.allocations()}
        self.learn_names(entered.values())
        self._slots.sweep()
        now_ns = self._clock.monotonic_ns()
        members = self._membership.adopt(entered.values())
        for record in entered.values():
            ending = (record.reason, record.explanation) if record.reason else None
            self._held[record.id] = _Held(record, now_ns, ending, end_noted=ending is not None, adopted=True)
            self._came_or_went(record.id)
            if self._slots.exists(record.id):
                self._membership.prepare(record.id)
                self._slots.bind(record.id, self._membership.group(record.id))
        self._orphans.adopt(members.union(self._slots.all()) - entered.keys())
        return self.sweep()

    def sweep(self) -> Changes:
        """Look at the witnesses again that may have changed, and take the steps that follow."""
        changes = Changes(failures=self._doubtful.close())
        for entry in self._to_look_at():
            try:
                self._settle(entry, changes)
            except CalabashError as error:
                changes.failures.append(error)  # tried again at the next sweep
        self._orphans.sweep()
        return changes

    def _to_look_at(self) -> list[_Held]:
        """Return what is not settled or has news of its members; everything now and then, and where there are no news.

        An allocation is settled if the last look led to no step, and only news of its members or a call can lead to one.
        """
        news, now_ns = self._membership.news(), self._clock.monotonic_ns()
        if news is None or now_ns >= self._look_at_all_ns:
            self._look_at_all_ns = now_ns + LOOK_AT_ALL_NS
            return list(self._held.values())
        wanted = self._unsettled.union(news)
        return [self._held[name] for name in sorted(wanted) if name in self._held]

    def _came_or_went(self, allocation: AllocationId) -> None:
        self._changes += 1
        if allocation in self._held:
            self._unsettled.add(allocation)
        else:
            self._unsettled.discard(allocation)

    def _settle(self, entry: _Held, changes: Changes) -> None:
        self._unsettled.add(entry.record.id)
        if entry.making:
            return  # whoever makes it goes on: grant or give_up follows
        if entry.start_unwritten:
            self._store.start(entry.record.id, at=entry.record.started_at)
            entry.start_unwritten = False
        while True:
            step = next_step(self._look(entry))
            if step is LifecycleStep.MARK_RUNNING:
                now_s = self._clock.now_s()
                self._store.start(entry.record.id, at=now_s)
                entry.record = replace(entry.record, state=AllocationState.RUNNING, started_at=now_s)
                changes.started.append(entry.record)
            elif step is LifecycleStep.END_PROGRAMS:
                if not entry.gently:
                    changes.failures += entry.note_end(self._store)
                    changes.to_end.append(entry.record)
                return
            elif step is LifecycleStep.REMOVE_SLOT:
                if not self._remove_slot(entry):
                    return
            elif step is LifecycleStep.CLOSE_ENTRY:
                changes.released.append(self._close(entry))
                return
            else:
                # What only waits for its requester or for a driver has other witnesses than its members.
                if entry.record.request.standing or entry.populated:
                    self._unsettled.discard(entry.record.id)
                return

    def _close(self, entry: _Held) -> AllocationRecord:
        at, (reason, why), usage = self._clock.now_s(), entry.why_it_ends, entry.last_usage(self._usage_of)
        name, released = entry.record.id, AllocationState.RELEASED
        self._store.release(name, at=at, reason=reason, explanation=why, usage=usage)
        del self._held[name]
        self._came_or_went(name)
        self._occupancy.forget(name)
        self._names.retire(name)
        return replace(entry.record, state=released, ended_at=at, reason=reason, explanation=why)

    def _look(self, entry: _Held) -> Seen:
        record = entry.record
        in_use = entry.populated = self._membership.populated(record.id)
        if in_use:
            self._occupancy.forget(record.id)
        elif record.state is AllocationState.RUNNING and self._slots.exists(record.id):
            in_use = not self._occupancy.clear(record)
        return Seen(
            entry=record.state,
            slot=self._slots.exists(record.id),
            in_use=in_use,
            awaited=entry.awaited(self._tenure, self._clock),
            ending=entry.ending is not None,
        )

    def _remove_slot(self, entry: _Held) -> bool:
        """False when somebody has come after all."""
        if not self._membership.remove(entry.record.id):
            return False
        self._store.add_usage(entry.last_usage(self._usage_of))  # before the slot goes, from which it is read
        self._slots.remove(entry.record.id)
        return True


@dataclass(frozen=True, slots=True)
class DeviceHeld:
    """The slices that are held of a device, the allocation of each, and the mode of the device; None while it is idle."""

    slices: tuple[HeldSlice, ...] = ()
    allocations: tuple[AllocationId, ...] = ()
    mode: ModeName | None = None


def _by_device(records: Iterable[AllocationRecord]) -> dict[DeviceUuid, DeviceHeld]:
    slices: dict[DeviceUuid, list[HeldSlice]] = {}
    names: dict[DeviceUuid, list[AllocationId]] = {}
    modes: dict[DeviceUuid, ModeName | None] = {}
    for record in records:
        for part in record.placement.slices:
            slices.setdefault(part.device, []).append(HeldSlice(slice=part, policy=record.request.policy))
            names.setdefault(part.device, []).append(record.id)
            modes[part.device] = mode_of_device(record.placement.mode)
    return {uuid: DeviceHeld(tuple(slices[uuid]), tuple(names[uuid]), modes[uuid]) for uuid in slices}


def holders_of(records: Iterable[AllocationRecord], device: DeviceUuid) -> list[AllocationId]:
    """Return the allocation of each slice of a device, in the order of the records."""
    return [record.id for record in records for part in record.placement.slices if part.device == device]
