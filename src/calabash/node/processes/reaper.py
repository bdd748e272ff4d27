"""Keeps the usage_tracker true: takes the dead off the counters and publishes residual memory.

A process is dead for the ledger when the kernel no longer knows it (pid and start time) *and* the driver no longer
lists it: only then is its memory really free. That nobody among the members is the process of an entry does not say that
it is dead: who has come to a slot that others made may not be known as a member yet. All processes of the machine are
asked then, after the entry was read. What tenants wrote about themselves is used for bookkeeping of that very tenant and
for nothing else.
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
SAME_READINGS = NOISY_READINGS + 1  # after so many readings that saw the same, the residual is what it will be
AGAIN_S = 2.0  # a slice with processes of which nothing changes is looked at again after so long
AGAIN_EMPTY_S = 120.0  # and one without processes
MARKS_S = 1.0  # so often the memory of slices without processes is compared: one may come and go between two readings
PASS_SHARE = 0.05  # of the time, that passes over all processes take at most, whatever tenants write

HostBytes = dict[int, int]  # pid in our namespace -> bytes
Entries = dict[ProcessKey, ProcUsage]


@dataclass(slots=True)
class Examination:
    """The last look of the reaper at a slice, by which it decides whether another look would find anything new.

    ``same`` counts the readings in a row that saw the same; ``pids`` are the processes in the host's namespace.
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
        """Take over what a look saw: the mark, and the entries before and after the driver was asked.

        Args:
            settled: nothing of it was changed by the reading, all processes are known, and none is just ending.
        """
        mark, before, after = seen
        same = settled and mark == self.mark and before == after == self.entries and pids == self.pids
        self.same = self.same + 1 if same else 0
        self.at_s, self.mark, self.entries, self.pids = at_s, mark, after, frozenset(pids)
        self.has_entries = bool(before or after)


@dataclass(slots=True)
class OpenSlot:
    """One allocation's pages and what is remembered between two readings."""

    usage: pages.UsagePage
    limits: pages.LimitsPage
    lease: Path
    residuals: list[Residual]
    members: Callable[[], list[Process]] | None = None  # who belongs to it, where no lease says so
    examined: Examination = field(default_factory=Examination)  # what the reaper saw at its last look

    @property
    def is_capped(self) -> bool:
        """Whether it has an amount of memory; else its pages only narrow what devices it sees."""
        return self.limits.device(0).memory_limit_bytes != 0


@dataclass(slots=True)
class SlotsByDevice:
    """The slices that the reaper readings at, by the devices that they are of."""

    open_slots: tuple[OpenSlot, ...]
    by_device: dict[DeviceUuid, list[OpenSlot]]
    busy: dict[int, OpenSlot]  # those that may be due at any look: they have processes, or were not looked at yet
    next_all_s: float = float("-inf")  # when the first of the others is due
    next_marks_s: float = float("-inf")  # when their memory is compared

    @classmethod
    def build(cls, open_slots: tuple[OpenSlot, ...]) -> SlotsByDevice:
        by_device: dict[DeviceUuid, list[OpenSlot]] = {}
        for slot in open_slots:
            for uuid in dict.fromkeys(slot.limits.uuids):
                by_device.setdefault(uuid, []).append(slot)
        return cls(open_slots, by_device, {id(k): k for k in open_slots})

    def due(self, now_s: float) -> list[OpenSlot]:
        """Return the slices that are to be looked at whatever drivers say."""
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
        """Take over whether a slice has processes now."""
        if slot.examined.has_entries:
            self.busy[id(slot)] = slot
        else:
            self.busy.pop(id(slot), None)
            self.next_all_s = min(self.next_all_s, slot.examined.at_s + AGAIN_EMPTY_S)

    def known(self, uuid: DeviceUuid) -> set[int]:
        """Return the processes that the slices of a device had at the last look at each."""
        return {pid for slot in self.by_device[uuid] if slot.examined.pids for pid in slot.examined.pids}

    def affected(self, moved: Mapping[DeviceUuid, Collection[int]]) -> list[OpenSlot]:
        """Return the slices that have one of the moved processes, or whose memory has changed beside them."""
        found: dict[int, OpenSlot] = {}
        for uuid, pids in moved.items():
            for slot in self.by_device[uuid]:
                if not slot.examined.pids.isdisjoint(pids) or slot.examined.mark != _mark(slot):
                    found[id(slot)] = slot
        return list(found.values())


def is_due(slot: OpenSlot, now_s: float) -> bool:
    """Return True if a slice is to be looked at whatever drivers say: it is new, it changes, or the last look is long ago."""
    examined = slot.examined
    if examined.has_entries:
        rests = examined.same >= SAME_READINGS and now_s < examined.at_s + AGAIN_S
    else:
        rests = now_s < examined.at_s + AGAIN_EMPTY_S
    return not rests or examined.mark != _mark(slot)


def _mark(slot: OpenSlot) -> tuple[bytes, ...]:
    return slot.usage.memory_mark(slot.limits.device_count)


class Reaper:
    """Looks at the usage_tracker of slices that may have changed; asks each driver once or twice per device and ``tick``."""

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
        self._last_listed: dict[DeviceUuid, HostBytes | None] = {}  # at the last look
        self._rounds = 0
        self._context_bytes = contexts if contexts is not None else {}  # by model: cards of a model cost the same

    def learn_context(self, model: str, context_bytes: int) -> None:
        """What an empty context costs on cards of a model."""
        if 0 < context_bytes <= CONTEXT_BYTES_MAX:
            self._context_bytes[model] = context_bytes

    def context_bytes_of(self, uuid: DeviceUuid) -> int:
        """What an empty context costs on that device; 0 while it is not known."""
        return self._context_bytes.get(self._inventory.model_of(uuid), 0)

    def publish_context(self, limits: pages.LimitsPage) -> None:
        """Tell a slot what a context on each of its devices costs."""
        for index, uuid in enumerate(limits.uuids):
            limits.set_context_bytes(index, self.context_bytes_of(uuid))

    def tick(self, open_slots: Iterable[OpenSlot]) -> None:
        """Look at every slice that may have changed. Drivers are asked for the devices that are used only."""
        if open_slots is not self._slots.open_slots:
            self._slots = SlotsByDevice.build(open_slots if isinstance(open_slots, tuple) else tuple(open_slots))
        now_s, slots = self._now_s(), self._slots
        due = slots.due(now_s)
        before = {id(slot): _entries(slot) for slot in due}
        listed_bytes = self._listed(due)
        moved = self._moved(listed_bytes)
        late = [slot for slot in slots.affected(moved) if id(slot) not in before]
        if late:  # the ledger is read before and after the driver, so that both can be compared
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
        """Ask the drivers; a device without processes, where no slice is due, at every other look only."""
        self._rounds += 1
        wanted = {uuid for slot in due for uuid in slot.limits.uuids}
        return {
            uuid: {}
            if self._rounds % 2 and uuid not in wanted and self._last_listed.get(uuid) == {}
            else self._driver_bytes(uuid)
            for uuid in self._slots.by_device
        }

    def _moved(self, listed_bytes: Mapping[DeviceUuid, HostBytes | None]) -> dict[DeviceUuid, set[int]]:
        """Return the processes of each device whose memory has changed since the last reading, and those that nobody knows."""
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
        """Bytes per process of a device; None when it does not answer: then nothing is known, and nothing is held."""
        try:
            found = self._inventory.processes(uuid)
        except (CalabashError, KeyError):
            return None
        return {p.pid: p.used_bytes for p in found}

    def _examine(
        self, slot: OpenSlot, before: Entries, listed_bytes: dict[DeviceUuid, HostBytes | None]
    ) -> list[ProcUsage]:
        """Returns the entries whose process is nobody that is known."""
        mark = slot.usage.memory_mark(slot.limits.device_count)
        after = _entries(slot)
        members = functools.cache(lambda: _members(slot))  # asked once, however many entries name nobody
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
        """Those that no process of the machine is."""
        began_s = self._now_s()
        there = in_other_namespaces()
        pids = {inner.pid for inner in there}
        for slot, proc in missing:
            if proc.state == ProcState.TAKEN:  # it holds nothing yet, and does not say of which namespace its pid is
                gone = proc.pid not in pids and identify(proc.pid) is None
            else:
                gone = _found(proc, there) is None
            if gone:
                with contextlib.suppress(CalabashError):
                    self._library.reap(slot.usage, proc)
        ended_s = self._now_s()
        self._next_pass_s = ended_s + (ended_s - began_s) / PASS_SHARE

    def _learn(self, uuid: DeviceUuid, proc: ProcUsage, index: int, reading: ProcessReading) -> None:
        """Where no card could be tried out: the least that a process with one context has held beside its own."""
        model = self._inventory.model_of(uuid)
        if proc.context_count != 1 or not reading.quiet or not reading.driver_bytes:
            return
        cost = reading.driver_bytes - (proc.used_bytes[index] - proc.context_bytes[index])
        if model not in self._context_bytes:
            self.learn_context(model, cost)

    def _host_process(
        self, slot: OpenSlot, proc: ProcUsage, members: Callable[[], dict[InnerPid, Process]]
    ) -> Process | None:
        """The process as this namespace knows it; None when it is nobody that is known."""
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
    """Return True if a process has memory by its entry and by no driver: it ends, and the kernel still knows it."""
    return any(
        process is not None
        and process.pid not in listed
        and (any(entries[key].used_bytes) or entries[key].context_count > 0)
        for key, process in known.items()
    )


def _members(slot: OpenSlot) -> dict[InnerPid, Process]:
    """Those that are known to belong to it."""
    found = slot.members() if slot.members else holders([slot.lease])[slot.lease]
    return by_inner_pid(process.pid for process in found)


def _found(proc: ProcUsage, processes: dict[InnerPid, Process]) -> Process | None:
    """The process that an entry names; without a start time its pid has to do."""
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
