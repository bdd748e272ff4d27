"""Remove ended processes from the counters of usage pages, and publish residual memory.

A process is removed from the counters when the kernel does not know it any more (by pid and start time) *and* no driver
lists it, because its memory is free only then. An entry whose process is not among the known members may belong to a
process that is not known as a member yet. So all processes of the machine are searched for it, after the entry was
read. Values that a tenant writes are used only for the accounting of that tenant.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from calabash.adapters.host.processes import (
    InnerPid,
    Process,
    alive,
    by_inner_pid,
    holders,
    identify,
    in_other_namespaces,
    pid_namespace,
)
from calabash.model.device import DeviceUuid
from calabash.model.errors import CalabashError
from calabash.model.units import MIB
from calabash.node.devices.inventory import Inventory
from calabash.node.slots import pages
from calabash.node.slots.layout import ProcState
from calabash.node.slots.native import PageLibrary
from calabash.node.slots.overhead import NOISY_READINGS, ProcessKey, ProcessReading, Residual
from calabash.node.slots.pages import ProcUsage

CONTEXT_BYTES_MAX = 4096 * MIB
SAME_READINGS = NOISY_READINGS + 1  # number of equal readings after which the residual does not change any more
AGAIN_S = 2.0  # period of examining a slot whose processes do not change
AGAIN_EMPTY_S = 120.0  # period of examining a slot without processes
MARKS_S = 1.0  # period of comparing the counters of slots without processes: one may start and end in between
PASS_SHARE = 0.05  # largest fraction of the time for searches of all processes, whatever tenants write

HostBytes = dict[int, int]  # pid in the host's namespace -> bytes
Entries = dict[ProcessKey, ProcUsage]


@dataclass(slots=True)
class Examination:
    """Result of the last examination of a slot. From it the reaper decides if the slot must be examined again.

    Args:
        at_s: time of the examination.
        mark: bytes of the usage page that change with the memory counters.
        entries: process entries of the page.
        has_entries: the page had process entries before or after the driver was called.
        pids: pids of these processes in the host's namespace.
        same: number of consecutive examinations with this result.
    """

    at_s: float = float("-inf")
    mark: tuple[bytes, ...] = ()
    entries: Entries = field(default_factory=dict)
    has_entries: bool = False
    pids: frozenset[int] = frozenset()
    same: int = 0

    def note(
        self, *, at_s: float, seen: tuple[tuple[bytes, ...], Entries, Entries], pids: set[int], settled: bool
    ) -> None:
        """Store the result of a new examination of the slot.

        Args:
            seen: the memory mark of the usage page, and its process entries before and after the driver was called.
            settled: the examination changed nothing, all processes are known, and none is just ending.
        """
        mark, before, after = seen
        same = settled and mark == self.mark and before == after == self.entries and pids == self.pids
        self.same = self.same + 1 if same else 0
        self.at_s, self.mark, self.entries, self.pids = at_s, mark, after, frozenset(pids)
        self.has_entries = bool(before or after)


@dataclass(slots=True)
class OpenSlot:
    """Open pages of one allocation, and the state that the reaper keeps between two examinations.

    Args:
        lease: path of the lease file, which members lock.
        residuals: residual memory of the allocation on each of its devices.
    """

    usage: pages.UsagePage
    limits: pages.LimitsPage
    lease: Path
    residuals: list[Residual]
    members: Callable[[], list[Process]] | None = None  # returns the members if there is no lease
    examined: Examination = field(default_factory=Examination)  # last examination by the reaper

    @property
    def is_capped(self) -> bool:
        """True if the allocation has a memory limit; otherwise its pages only restrict the visible devices."""
        return self.limits.device(0).memory_limit_bytes != 0


@dataclass(slots=True)
class SlotsByDevice:
    """Slots that the reaper examines, by device, with the times at which they are due."""

    open_slots: tuple[OpenSlot, ...]
    by_device: dict[DeviceUuid, list[OpenSlot]]
    busy: dict[int, OpenSlot]  # slots that may be due at any time: with processes, or not examined yet
    next_all_s: float = float("-inf")  # when the first of the other slots is due
    next_marks_s: float = float("-inf")  # when their counters are compared next

    @classmethod
    def build(cls, open_slots: tuple[OpenSlot, ...]) -> SlotsByDevice:
        by_device: dict[DeviceUuid, list[OpenSlot]] = {}
        for slot in open_slots:
            for uuid in dict.fromkeys(slot.limits.uuids):
                by_device.setdefault(uuid, []).append(slot)
        return cls(open_slots, by_device, {id(k): k for k in open_slots})

    def due(self, now_s: float) -> list[OpenSlot]:
        """Return the slots that are to be examined even if no driver reports a change."""
        if now_s >= self.next_all_s:
            self.busy = {id(k): k for k in self.open_slots if k.examined.has_entries or is_due(k, now_s)}
            rests = (k.examined.at_s for k in self.open_slots if id(k) not in self.busy)
            self.next_all_s = min(rests, default=now_s) + AGAIN_EMPTY_S
        if now_s >= self.next_marks_s:
            self.next_marks_s = now_s + MARKS_S
            others = (k for k in self.open_slots if id(k) not in self.busy)
            self.busy |= {id(k): k for k in others if k.examined.mark != _mark(k)}
        return [slot for slot in self.busy.values() if is_due(slot, now_s)]

    def note_examined(self, slot: OpenSlot) -> None:
        """Record the examination of a slot: it is examined again soon if it has process entries."""
        if slot.examined.has_entries:
            self.busy[id(slot)] = slot
        else:
            self.busy.pop(id(slot), None)
            self.next_all_s = min(self.next_all_s, slot.examined.at_s + AGAIN_EMPTY_S)

    def known(self, uuid: DeviceUuid) -> set[int]:
        """Return the pids that the slots of a device had at their last examinations."""
        return {pid for slot in self.by_device[uuid] if slot.examined.pids for pid in slot.examined.pids}

    def affected(self, moved: Mapping[DeviceUuid, Collection[int]]) -> list[OpenSlot]:
        """Return the slots that had one of the processes in ``moved``, or whose memory counters have changed."""
        found: dict[int, OpenSlot] = {}
        for uuid, pids in moved.items():
            for slot in self.by_device[uuid]:
                if not slot.examined.pids.isdisjoint(pids) or slot.examined.mark != _mark(slot):
                    found[id(slot)] = slot
        return list(found.values())


def is_due(slot: OpenSlot, now_s: float) -> bool:
    """Return True if a slot is to be examined even if no driver reports a change.

    That is, if it is new, its counters change, or its last examination is longer ago than AGAIN_S. For a slot without
    processes this time is AGAIN_EMPTY_S.
    """
    examined = slot.examined
    if examined.has_entries:
        rests = examined.same >= SAME_READINGS and now_s < examined.at_s + AGAIN_S
    else:
        rests = now_s < examined.at_s + AGAIN_EMPTY_S
    return not rests or examined.mark != _mark(slot)


def _mark(slot: OpenSlot) -> tuple[bytes, ...]:
    return slot.usage.memory_mark(slot.limits.device_count)


class Reaper:
    """Reaper of all slots. It examines slots that may have changed, with at most two driver calls per device and tick.

    Args:
        library: library that changes counters of usage pages atomically.
        contexts: memory of an empty CUDA context in bytes by model, to which the reaper adds values; None: empty.
    """

    def __init__(
        self,
        inventory: Inventory,
        library: PageLibrary,
        contexts: dict[str, int] | None = None,
        *,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._inventory = inventory
        self._library = library
        self._now_s = now_s
        self._next_pass_s = 0.0
        self._own_namespace = pid_namespace()
        self._slots = SlotsByDevice.build(())
        self._last_listed: dict[DeviceUuid, HostBytes | None] = {}  # at the last tick
        self._rounds = 0
        self._context_bytes = contexts if contexts is not None else {}  # by model of card

    def learn_context(self, model: str, context_bytes: int) -> None:
        """Set the memory of an empty context on cards of a model, if it is plausible."""
        if 0 < context_bytes <= CONTEXT_BYTES_MAX:
            self._context_bytes[model] = context_bytes

    def context_bytes_of(self, uuid: DeviceUuid) -> int:
        """Return the memory of an empty context on a device; 0 while it is unknown."""
        return self._context_bytes.get(self._inventory.model_of(uuid), 0)

    def publish_context(self, limits: pages.LimitsPage) -> None:
        """Write to the limits of a slot how much memory an empty context takes on each device of the slot."""
        for index, uuid in enumerate(limits.uuids):
            limits.set_context_bytes(index, self.context_bytes_of(uuid))

    def tick(self, open_slots: Iterable[OpenSlot]) -> None:
        """Examine every slot that may have changed. Drivers are called for devices with slots only."""
        if open_slots is not self._slots.open_slots:
            self._slots = SlotsByDevice.build(open_slots if isinstance(open_slots, tuple) else tuple(open_slots))
        now_s, slots = self._now_s(), self._slots
        due = slots.due(now_s)
        before = {id(slot): _entries(slot) for slot in due}
        listed_bytes = self._listed(due)
        moved = self._moved(listed_bytes)
        late = [slot for slot in slots.affected(moved) if id(slot) not in before]
        if late:  # read the page before and after the driver, so that both can be compared
            before |= {id(slot): _entries(slot) for slot in late}
            listed_bytes |= {uuid: self._driver_bytes(uuid) for slot in late for uuid in slot.limits.uuids}
        self._last_listed = listed_bytes
        missing: list[tuple[OpenSlot, ProcUsage]] = []
        for slot in (*due, *late):
            with contextlib.suppress(CalabashError):
                missing += ((slot, proc) for proc in self._examine(slot, before[id(slot)], listed_bytes))
        if missing and self._now_s() >= self._next_pass_s:
            self._reap_missing(missing)

    def _listed(self, due: Sequence[OpenSlot]) -> dict[DeviceUuid, HostBytes | None]:
        """Return the processes that the drivers list on each device with slots.

        A device without processes at the last call, and without a slot in ``due``, is listed at every other call only.
        """
        self._rounds += 1
        wanted = {uuid for slot in due for uuid in slot.limits.uuids}
        return {
            uuid: {}
            if self._rounds % 2 and uuid not in wanted and self._last_listed.get(uuid) == {}
            else self._driver_bytes(uuid)
            for uuid in self._slots.by_device
        }

    def _moved(self, listed_bytes: Mapping[DeviceUuid, HostBytes | None]) -> dict[DeviceUuid, set[int]]:
        """Return by device the pids whose memory changed since the last call, and pids that no examined slot has."""
        moved: dict[DeviceUuid, set[int]] = {}
        for uuid, held in listed_bytes.items():
            last = self._last_listed.get(uuid)
            if held == last and (not held or held.keys() <= self._slots.known(uuid)):
                continue
            now, then = held or {}, last or {}
            changed = {pid for pid in now.keys() | then.keys() if now.get(pid) != then.get(pid)}
            moved[uuid] = changed | (now.keys() - self._slots.known(uuid))
        return moved

    def _driver_bytes(self, uuid: DeviceUuid) -> HostBytes | None:
        """Return the bytes of each process on a device; None if the driver does not answer."""
        try:
            found = self._inventory.processes(uuid)
        except (CalabashError, KeyError):
            return None
        return {p.pid: p.used_bytes for p in found}

    def _examine(
        self, slot: OpenSlot, before: Entries, listed_bytes: dict[DeviceUuid, HostBytes | None]
    ) -> list[ProcUsage]:
        """Update the residual memory of a slot and remove its ended processes; return the entries of unknown processes.

        Args:
            before: process entries before the drivers were called.
            listed_bytes: memory of each process by device, as the drivers list them; None: no answer.
        """
        mark = slot.usage.memory_mark(slot.limits.device_count)
        after = _entries(slot)
        members = functools.cache(lambda: _members(slot))  # called once for all unknown entries
        known = {key: self._host_process(slot, proc, members) for key, proc in after.items()}
        if slot.is_capped:
            self.publish_context(slot.limits)
        listed: set[int] = set()
        for index, uuid in enumerate(slot.limits.uuids):
            driver = listed_bytes[uuid]
            if driver is None:
                continue
            listed |= driver.keys()
            if not slot.is_capped:
                continue
            readings: dict[ProcessKey, ProcessReading] = {}
            for key, process in known.items():
                if process is not None and process.pid in driver:
                    readings[key] = _reading(before.get(key), after[key], index, driver[process.pid])
            for key, reading in readings.items():
                self._learn(uuid, after[key], index, reading)
            slot.limits.set_residual(index, slot.residuals[index].update(readings))
        reaped = False
        for key, process in known.items():
            if process is not None and not alive(process) and process.pid not in listed:
                reaped = True
                self._library.reap(slot.usage, after[key])
        missing = [after[key] for key, process in known.items() if process is None]
        slot.examined.note(
            at_s=self._now_s(),
            seen=(mark, before, after),
            pids={process.pid for process in known.values() if process is not None},
            settled=not reaped and not missing and not _is_leaving(known, after, listed),
        )
        self._slots.note_examined(slot)
        return missing

    def _reap_missing(self, missing: Iterable[tuple[OpenSlot, ProcUsage]]) -> None:
        """Search all processes of the machine for those of unknown entries; remove each entry whose process is gone."""
        began_s = self._now_s()
        there = in_other_namespaces()
        pids = {inner.pid for inner in there}
        for slot, proc in missing:
            if proc.state == ProcState.TAKEN:  # it has no memory yet, and its namespace is not written yet
                gone = proc.pid not in pids and identify(proc.pid) is None
            else:
                gone = _found(proc, there) is None
            if gone:
                with contextlib.suppress(CalabashError):
                    self._library.reap(slot.usage, proc)
        ended_s = self._now_s()
        self._next_pass_s = ended_s + (ended_s - began_s) / PASS_SHARE

    def _learn(self, uuid: DeviceUuid, proc: ProcUsage, index: int, reading: ProcessReading) -> None:
        """Learn the memory of a context from a process with one context, if it is not known for the card's model."""
        model = self._inventory.model_of(uuid)
        if proc.context_count != 1 or not reading.quiet or not reading.driver_bytes:
            return
        cost = reading.driver_bytes - (proc.used_bytes[index] - proc.context_bytes[index])
        if model not in self._context_bytes:
            self.learn_context(model, cost)

    def _host_process(
        self, slot: OpenSlot, proc: ProcUsage, members: Callable[[], dict[InnerPid, Process]]
    ) -> Process | None:
        """Return the process of an entry with its pid in the host's namespace; None if it is unknown.

        ``members`` returns the known member processes of the slot.
        """
        if proc.state == ProcState.TAKEN:
            return None
        is_ours = proc.pid_namespace in {0, self._own_namespace}
        if proc.host_pid > 0 or is_ours:
            pid = proc.host_pid if proc.host_pid > 0 else proc.pid
            return Process(pid=pid, start_time=proc.start_time) if proc.start_time else identify(pid)
        found = _found(proc, members())
        if found is not None:
            self._library.set_host_pid(slot.usage, proc, found.pid)
        return found


def _is_leaving(known: Mapping[ProcessKey, Process | None], entries: Entries, listed: Collection[int]) -> bool:
    """Return True if a process has memory according to its entry, but no driver lists it.

    Such a process is just ending: its memory is free, and the kernel still knows the process.
    """
    return any(
        process is not None
        and process.pid not in listed
        and (any(entries[key].used_bytes) or entries[key].context_count > 0)
        for key, process in known.items()
    )


def _members(slot: OpenSlot) -> dict[InnerPid, Process]:
    """Return the known member processes of a slot by their pids in their own PID namespace."""
    found = slot.members() if slot.members else holders([slot.lease])[slot.lease]
    return by_inner_pid(process.pid for process in found)


def _found(proc: ProcUsage, processes: dict[InnerPid, Process]) -> Process | None:
    """Return the process that an entry names; an entry without a start time is matched by its pid."""
    found = processes.get(InnerPid(namespace=proc.pid_namespace, pid=proc.pid))
    return found if found is not None and proc.start_time in {0, found.start_time} else None


def _entries(slot: OpenSlot) -> Entries:
    return {(proc.index, proc.generation): proc for proc in slot.usage.procs()}


def _reading(before: ProcUsage | None, after: ProcUsage, index: int, driver_bytes: int) -> ProcessReading:
    first = before if before is not None else after
    return ProcessReading(
        driver_bytes=driver_bytes,
        ledger_before_bytes=first.used_bytes[index],
        ledger_after_bytes=after.used_bytes[index],
        transactions_before=first.transactions[index] if before is not None else -1,
        transactions_after=after.transactions[index],
        reserving=first.reserving_bytes[index] > 0 or after.reserving_bytes[index] > 0,
    )
