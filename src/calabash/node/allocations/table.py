"""Held allocations, kept consistent with the journal, the slots and membership.

Only ``lifecycle.next_step`` decides about state changes: a grant is journalled before its slot is created, a release
after its slot is removed. Every sweep observes the state again. A starting agent reads journal and slots and takes the
same steps, so it reaches the state that the previous agent would have reached.

Changes are not thread-safe: the agent makes them under its lock. Reading is.
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
from calabash.model.allocation_lifecycle import AllocationEvent, advanced
from calabash.model.device import DeviceUuid
from calabash.model.errors import CalabashError, Reason
from calabash.model.messages import Message, Text
from calabash.model.request import AllocationId, ModeName
from calabash.node.allocations.held_allocation import HeldAllocation
from calabash.node.allocations.lifecycle import LifecycleStep, Witnesses, next_step
from calabash.node.allocations.orphans import Orphans
from calabash.node.allocations.retention import RequesterRetention, RetentionPolicy
from calabash.node.allocations.uncertain_entries import UncertainEntries
from calabash.node.membership.protocol import Membership
from calabash.node.slots.content import SlotSpec
from calabash.node.slots.names import SlotNames
from calabash.node.slots.protocol import Slots
from calabash.sharing.protocol import HeldSlice
from calabash.sharing.registry import mode_of_device

FULL_SWEEP_NS = 5_000_000_000  # longest delay until a change without a notification is found, such as a removed slot


@dataclass(slots=True, kw_only=True)
class Changes:
    """Result of a sweep: allocations that started or were released, those whose programs must be ended, and failures."""

    started: list[AllocationRecord] = field(default_factory=list)
    released: list[AllocationRecord] = field(default_factory=list)
    to_end: list[AllocationRecord] = field(default_factory=list)
    failures: list[CalabashError] = field(default_factory=list)


class Occupied(Protocol):
    """Check if devices still list processes of an allocation; see ``occupancy.Occupancy``, which implements it."""

    def is_clear(self, record: AllocationRecord) -> bool: ...

    def discard(self, allocation: AllocationId) -> None: ...


class Allocations:
    """All allocations that are held.

    Args:
        usage_of: returns the final usage records of an allocation; called once, before its slot is removed.
        names: names of slots, shared with all components that name something after an allocation's slot.
        retention: decides how long an allocation without member processes is kept; None: ``RequesterRetention``.
        boot: ID of the present boot of this machine, in which the monotonic time of ``clock`` is valid.
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
        retention: RetentionPolicy | None = None,
        boot: str = "",
    ) -> None:
        self._names = names or SlotNames()
        self._store, self._slots, self._membership = store, slots, membership
        self._clock, self._boot = clock, boot
        self._usage_of, self._occupancy = usage_of, occupancy
        self._retention = retention or RequesterRetention()
        self._held: dict[AllocationId, HeldAllocation] = {}
        self._orphans, self._uncertain = Orphans(slots, membership), UncertainEntries(store, clock)
        self._next_full_sweep_ns = 0
        self._unsettled: set[AllocationId] = set()
        self._changes = 0  # number of allocations added or removed so far
        self._devices: tuple[int, dict[DeviceUuid, DeviceHeld]] | None = (
            None  # with the value of _changes that it belongs to
        )

    def records(self) -> list[AllocationRecord]:
        """Return all held allocations, oldest first."""
        return [e.record for e in list(self._held.values())]

    def by_device(self) -> Mapping[DeviceUuid, DeviceHeld]:
        """Return the held slices by device; devices without any are left out. Called under the agent's lock."""
        if self._devices is None or self._devices[0] != self._changes:
            self._devices = (self._changes, _by_device(self.records()))
        return self._devices[1]

    def get(self, allocation: AllocationId) -> AllocationRecord | None:
        """Return the record of a held allocation; None if it is not held."""
        return entry.record if (entry := self._held.get(allocation)) else None

    def making(self, allocation: AllocationId) -> bool:
        """Return True while the sharing mode is creating the resources of the allocation."""
        return bool((entry := self._held.get(allocation)) and entry.making)

    def ending(self, allocation: AllocationId) -> tuple[str, Text] | None:
        """Return reason and explanation of a requested end; None if none was requested."""
        return entry.ending if (entry := self._held.get(allocation)) else None

    def lives(self, allocation: AllocationId) -> bool:
        """Return True if an allocation has a live member process or is kept until it gets one."""
        entry = self._held.get(allocation)
        return entry is not None and (
            self._membership.populated(allocation) or entry.awaited(self._retention, self._clock)
        )

    def orphaned(self, device: DeviceUuid) -> list[AllocationId]:
        """Return the orphans on a device: allocations with processes but without a journal entry.

        The device takes no new work until these processes have ended.
        """
        return self._orphans.on(device)

    def hold(self, record: AllocationRecord) -> AllocationRecord:
        """Journal an allocation; its capacity is held from now on, and ``grant`` or ``give_up`` must follow.

        Raises:
            CalabashError: DISK_FULL or STORE_UNAVAILABLE; nothing is held.
        """
        self._names.assign(record.id)
        slot, now_ns = str(self._slots.path(record.id)), self._clock.monotonic_ns()
        record = replace(record, state=AllocationState.GRANTED, slot=slot, granted_ns=now_ns, boot=self._boot)
        try:
            self._store.grant(record)
        except BaseException as error:
            self._withdraw(record.id, error)
            raise
        self._held[record.id] = HeldAllocation(record, now_ns, making=True)
        self._note_change(record.id)
        return record

    def grant(self, spec: SlotSpec) -> AllocationRecord:
        """Create the slot of a held allocation.

        Raises:
            CalabashError: the slot cannot be created, or CONFLICT if its end was requested meanwhile; nothing is held.
        """
        entry = self._held[spec.allocation]
        try:
            if entry.ending:
                raise CalabashError(
                    Message("allocation {allocation}: {why}", allocation=entry.record.id, why=entry.ending[1]),
                    reason=Reason.CONFLICT,
                )
            self._slots.create(spec)
            self._membership.prepare(spec.allocation)
            self._slots.bind(spec.allocation, self._membership.group(spec.allocation))
        except BaseException as error:
            self.give_up(spec.allocation, error)
            raise
        entry.making, entry.since_ns = False, self._clock.monotonic_ns()
        return entry.record

    def give_up(self, allocation: AllocationId, error: BaseException) -> None:
        """Release an allocation whose resources could not be created."""
        del self._held[allocation]
        self._note_change(allocation)
        self._withdraw(allocation, error)

    def _withdraw(self, allocation: AllocationId, error: BaseException) -> None:
        self._membership.remove(allocation)
        self._slots.remove(allocation)
        self._names.retire(allocation)
        self._uncertain.add(allocation, error)

    def end(self, allocation: AllocationId, *, reason: str, explanation: Text, gently: bool = False) -> bool:
        """Request the end of an allocation: its programs are ended, then it is released. Returns False if it is not held.

        Args:
            gently: send the programs no signal; they are about to end by themselves.
        """
        if (entry := self._held.get(allocation)) is None:
            return False
        self._unsettled.add(allocation)
        entry.gently = gently and (entry.ending is None or entry.gently)
        entry.ending = entry.ending or (reason, explanation)
        return True

    def started(self, allocation: AllocationId, program: Process | None) -> AllocationRecord | None:
        """Note that the program of an allocation is a member and runs; return the record.

        None if the allocation is not held, is ending, or is still being created. ``program`` is None for a standing
        allocation.
        """
        entry = self._held.get(allocation)
        if entry is None or entry.ending or entry.making:
            return None
        if program is not None:
            if self._membership.form == "lease":  # control groups keep their members by themselves
                self._store.note(allocation, program=(program.pid, program.start_time))
            entry.record = replace(entry.record, program_pid=program.pid, program_start_time=program.start_time)
        if entry.record.state is AllocationState.GRANTED:
            # The start does not wait for the disk: after a crash it is observed again.
            entry.record = advanced(entry.record, AllocationEvent.USED, started_at=self._clock.now_s())
            entry.start_unwritten = True
            self._unsettled.add(allocation)
        return entry.record

    def learn_names(self, entered: Iterable[AllocationRecord]) -> None:
        """Register the slot names that these journal records contain, before the slots are opened."""
        for record in entered:
            self._names.adopt(record.id, PurePath(record.slot).name)

    def recover(self) -> Changes:
        """Adopt the allocations found in journal, slots and membership. Called once, before the first grant."""
        entered = {r.id: r for r in self._store.allocations()}
        self.learn_names(entered.values())
        self._slots.sweep()
        now_ns = self._clock.monotonic_ns()
        members = self._membership.adopt(entered.values())
        for record in entered.values():
            ending = (record.reason, record.explanation) if record.reason else None
            self._held[record.id] = HeldAllocation(record, now_ns, ending, end_noted=bool(ending), adopted=True)
            self._note_change(record.id)
            if self._slots.exists(record.id):
                self._membership.prepare(record.id)
                try:
                    self._slots.bind(record.id, self._membership.group(record.id))
                except CalabashError as error:
                    if error.reason is not Reason.BAD_FILE:  # the usage tracker ends it for its resized page
                        raise
        self._orphans.adopt(members.union(self._slots.all()) - entered.keys())
        return self.sweep()

    def sweep(self) -> Changes:
        """Observe the state of allocations that may have changed, and take the steps that follow."""
        changes = Changes(failures=self._uncertain.close())
        for entry in self._entries_to_settle():
            try:
                self._settle(entry, changes)
            except CalabashError as error:
                changes.failures.append(error)  # tried again at the next sweep
        self._orphans.sweep()
        return changes

    def _entries_to_settle(self) -> list[HeldAllocation]:
        """Return the unsettled allocations and those whose members have changed; every FULL_SWEEP_NS return all.

        An allocation is settled if the last observation led to no step, and only a change of its members or a call can
        lead to one. All are returned if membership cannot report changes.
        """
        news, now_ns = self._membership.changed_allocations(), self._clock.monotonic_ns()
        if news is None or now_ns >= self._next_full_sweep_ns:
            self._next_full_sweep_ns = now_ns + FULL_SWEEP_NS
            return list(self._held.values())
        wanted = self._unsettled.union(news)
        return [self._held[name] for name in sorted(wanted) if name in self._held]

    def _note_change(self, allocation: AllocationId) -> None:
        self._changes += 1
        if allocation in self._held:
            self._unsettled.add(allocation)
        else:
            self._unsettled.discard(allocation)

    def _settle(self, entry: HeldAllocation, changes: Changes) -> None:
        self._unsettled.add(entry.record.id)
        if entry.making:
            return  # grant or give_up follows
        if entry.start_unwritten:
            self._store.start(entry.record.id, at=entry.record.started_at)
            entry.start_unwritten = False
        while True:
            step = next_step(self._witnesses(entry))
            if step is LifecycleStep.MARK_RUNNING:
                now_s = self._clock.now_s()
                self._store.start(entry.record.id, at=now_s)
                entry.record = advanced(entry.record, AllocationEvent.USED, started_at=now_s)
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
                # An allocation that waits for its requester or for a driver changes without a change of its members.
                if entry.record.request.standing or entry.populated:
                    self._unsettled.discard(entry.record.id)
                return

    def _close(self, entry: HeldAllocation) -> AllocationRecord:
        at, (reason, why), usage = self._clock.now_s(), entry.end_reason, entry.last_usage(self._usage_of)
        name = entry.record.id
        self._store.release(name, at=at, reason=reason, explanation=why, usage=usage)
        del self._held[name]
        self._note_change(name)
        self._occupancy.discard(name)
        self._names.retire(name)
        return advanced(entry.record, AllocationEvent.SLOT_REMOVED, ended_at=at, reason=reason, explanation=why)

    def _witnesses(self, entry: HeldAllocation) -> Witnesses:
        record = entry.record
        in_use = entry.populated = self._membership.populated(record.id)
        if in_use:
            self._occupancy.discard(record.id)
        elif record.state is AllocationState.RUNNING and self._slots.exists(record.id):
            in_use = not self._occupancy.is_clear(record)
        return Witnesses(
            entry=record.state,
            slot=self._slots.exists(record.id),
            in_use=in_use,
            awaited=entry.awaited(self._retention, self._clock),
            ending=entry.ending is not None,
        )

    def _remove_slot(self, entry: HeldAllocation) -> bool:
        """Remove the control group and the slot; return False if a process has become a member meanwhile."""
        if not self._membership.remove(entry.record.id):
            return False
        self._store.add_usage(entry.last_usage(self._usage_of))  # before the slot is removed, from which usage is read
        self._slots.remove(entry.record.id)
        return True


@dataclass(frozen=True, slots=True)
class DeviceHeld:
    """Slices held of a device, the allocation of each, and the mode of the device (None if idle)."""

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
    """Return the allocation of each held slice of a device, in the order of ``records``."""
    return [record.id for record in records for part in record.placement.slices if part.device == device]
