"""Keeps the ledgers true: takes the dead off the counters and publishes residual memory.

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
from calabash.node.slots.overhead import NOISY_LOOKS, ProcessKey, ProcessLook, Residual
from calabash.node.slots.pages import ProcUsage

CONTEXT_BYTES_MAX = 4096 * MIB
SAME_LOOKS = NOISY_LOOKS + 1  # after so many looks that saw the same, the residual is what it will be
AGAIN_S = 2.0  # a slice with processes of which nothing changes is looked at again after so long
AGAIN_EMPTY_S = 120.0  # and one without processes
MARKS_S = 1.0  # so often the memory of slices without processes is compared: one may come and go between two looks
PASS_SHARE = 0.05  # of the time, that passes over all processes take at most, whatever tenants write

HostBytes = dict[int, int]  # pid in our namespace -> bytes
Entries = dict[ProcessKey, ProcUsage]


@dataclass(slots=True)
class Looked:
    """The last look of the reaper at a slice, by which it decides whether another look would find anything new.

    ``same`` counts the looks in a row that saw the same; ``pids`` are the processes in the host's namespace.
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
            settled: nothing of it was changed by the look, all processes are known, and none is just ending.
        """
        mark, before, after = seen
        same = settled and mark == self.mark and before == after == self.entries and pids == self.pids
        self.same = self.same + 1 if same else 0
        self.at_s, self.mark, self.entries, self.pids = at_s, mark, after, frozenset(pids)
        self.has_entries = bool(before or after)


@dataclass(slots=True)
class Keeping:
    """One allocation's pages and what is remembered between two looks."""

    usage: pages.UsagePage
    limits: pages.LimitsPage
    lease: Path
    residuals: list[Residual]
    members: Callable[[], list[Process]] | None = None  # who belongs to it, where no lease says so
    looked: Looked = field(default_factory=Looked)  # what the reaper saw at its last look

    @property
    def is_capped(self) -> bool:
        """Whether it has an amount of memory; else its pages only narrow what devices it sees."""
        return self.limits.device(0).memory_limit_bytes != 0


@dataclass(slots=True)
class SlicesOfDevices:
    """The slices that the reaper looks at, by the devices that they are of."""

    keepings: tuple[Keeping, ...]
    by_device: dict[DeviceUuid, list[Keeping]]
    busy: dict[int, Keeping]  # those that may be due at any look: they have processes, or were not looked at yet
    next_all_s: float = float("-inf")  # when the first of the others is due
    next_marks_s: float = float("-inf")  # when their memory is compared

    @classmethod
    def of(cls, keepings: tuple[Keeping, ...]) -> SlicesOfDevices:
        by_device: dict[DeviceUuid, list[Keeping]] = {}
        for keeping in keepings:
            for uuid in dict.fromkeys(keeping.limits.uuids):
                by_device.setdefault(uuid, []).append(keeping)
        return cls(keepings, by_device, {id(k): k for k in keepings})

    def due(self, now_s: float) -> list[Keeping]:
        """Return the slices that are to be looked at whatever drivers say."""
        if now_s >= self.next_all_s:
            self.busy = {id(k): k for k in self.keepings if k.looked.has_entries or is_due(k, now_s)}
            rests = (k.looked.at_s for k in self.keepings if id(k) not in self.busy)
            self.next_all_s = min(rests, default=now_s) + AGAIN_EMPTY_S
        if now_s >= self.next_marks_s:
            self.next_marks_s = now_s + MARKS_S
            others = (k for k in self.keepings if id(k) not in self.busy)
            self.busy |= {id(k): k for k in others if k.looked.mark != _mark(k)}
        return [keeping for keeping in self.busy.values() if is_due(keeping, now_s)]

    def looked_at(self, keeping: Keeping) -> None:
        """Take over whether a slice has processes now."""
        if keeping.looked.has_entries:
            self.busy[id(keeping)] = keeping
        else:
            self.busy.pop(id(keeping), None)
            self.next_all_s = min(self.next_all_s, keeping.looked.at_s + AGAIN_EMPTY_S)

    def known(self, uuid: DeviceUuid) -> set[int]:
        """Return the processes that the slices of a device had at the last look at each."""
        return {pid for keeping in self.by_device[uuid] if keeping.looked.pids for pid in keeping.looked.pids}

    def affected(self, moved: Mapping[DeviceUuid, Collection[int]]) -> list[Keeping]:
        """Return the slices that have one of the moved processes, or whose memory has changed beside them."""
        found: dict[int, Keeping] = {}
        for uuid, pids in moved.items():
            for keeping in self.by_device[uuid]:
                if not keeping.looked.pids.isdisjoint(pids) or keeping.looked.mark != _mark(keeping):
                    found[id(keeping)] = keeping
        return list(found.values())


def is_due(keeping: Keeping, now_s: float) -> bool:
    """Return True if a slice is to be looked at whatever drivers say: it is new, it changes, or the last look is long ago."""
    looked = keeping.looked
    if looked.has_entries:
        rests = looked.same >= SAME_LOOKS and now_s < looked.at_s + AGAIN_S
    else:
        rests = now_s < looked.at_s + AGAIN_EMPTY_S
    return not rests or looked.mark != _mark(keeping)


def _mark(keeping: Keeping) -> tuple[bytes, ...]:
    return keeping.usage.memory_mark(keeping.limits.device_count)


class Reaper:
    """Looks at the ledgers of slices that may have changed; asks each driver once or twice per device and ``tick``."""

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
        self._slices = SlicesOfDevices.of(())
        self._truth: dict[DeviceUuid, HostBytes | None] = {}  # at the last look
        self._looks = 0
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

    def tick(self, keepings: Iterable[Keeping]) -> None:
        """Look at every slice that may have changed. Drivers are asked for the devices that are used only."""
        if keepings is not self._slices.keepings:
            self._slices = SlicesOfDevices.of(keepings if isinstance(keepings, tuple) else tuple(keepings))
        now_s, slices = self._now_s(), self._slices
        due = slices.due(now_s)
        before = {id(keeping): _entries(keeping) for keeping in due}
        truth = self._listed(due)
        moved = self._moved(truth)
        late = [keeping for keeping in slices.affected(moved) if id(keeping) not in before]
        if late:  # the ledger is read before and after the driver, so that both can be compared
            before |= {id(keeping): _entries(keeping) for keeping in late}
            truth |= {uuid: self._driver_bytes(uuid) for keeping in late for uuid in keeping.limits.uuids}
        self._truth = truth
        missing: list[tuple[Keeping, ProcUsage]] = []
        for keeping in (*due, *late):
            with contextlib.suppress(CalabashError):
                missing += ((keeping, proc) for proc in self._look(keeping, before[id(keeping)], truth))
        if missing and self._now_s() >= self._next_pass_s:
            self._reap_missing(missing)

    def _listed(self, due: Sequence[Keeping]) -> dict[DeviceUuid, HostBytes | None]:
        """Ask the drivers; a device without processes, where no slice is due, at every other look only."""
        self._looks += 1
        wanted = {uuid for keeping in due for uuid in keeping.limits.uuids}
        return {
            uuid: {}
            if self._looks % 2 and uuid not in wanted and self._truth.get(uuid) == {}
            else self._driver_bytes(uuid)
            for uuid in self._slices.by_device
        }

    def _moved(self, truth: Mapping[DeviceUuid, HostBytes | None]) -> dict[DeviceUuid, set[int]]:
        """Return the processes of each device whose memory has changed since the last look, and those that nobody knows."""
        moved: dict[DeviceUuid, set[int]] = {}
        for uuid, held in truth.items():
            last = self._truth.get(uuid)
            if held == last and (not held or held.keys() <= self._slices.known(uuid)):
                continue
            now, then = held or {}, last or {}
            changed = {pid for pid in now.keys() | then.keys() if now.get(pid) != then.get(pid)}
            moved[uuid] = changed | (now.keys() - self._slices.known(uuid))
        return moved

    def _driver_bytes(self, uuid: DeviceUuid) -> HostBytes | None:
        """Bytes per process of a device; None when it does not answer: then nothing is known, and nothing is held."""
        try:
            found = self._inventory.processes(uuid)
        except (CalabashError, KeyError):
            return None
        return {p.pid: p.used_bytes for p in found}

    def _look(self, keeping: Keeping, before: Entries, truth: dict[DeviceUuid, HostBytes | None]) -> list[ProcUsage]:
        """Returns the entries whose process is nobody that is known."""
        mark = keeping.usage.memory_mark(keeping.limits.device_count)
        after = _entries(keeping)
        members = functools.cache(lambda: _members(keeping))  # asked once, however many entries name nobody
        known = {key: self._host_process(keeping, proc, members) for key, proc in after.items()}
        if keeping.is_capped:
            self.publish_context(keeping.limits)
        listed: set[int] = set()
        for index, uuid in enumerate(keeping.limits.uuids):
            driver = truth[uuid]
            if driver is None:
                continue
            listed |= driver.keys()
            if not keeping.is_capped:
                continue
            looks: dict[ProcessKey, ProcessLook] = {}
            for key, process in known.items():
                if process is not None and process.pid in driver:
                    looks[key] = _look_at(before.get(key), after[key], index, driver[process.pid])
            for key, look in looks.items():
                self._learn(uuid, after[key], index, look)
            keeping.limits.set_residual(index, keeping.residuals[index].see(looks))
        reaped = False
        for key, process in known.items():
            if process is not None and not alive(process) and process.pid not in listed:
                reaped = True
                self._library.reap(keeping.usage, after[key])
        missing = [after[key] for key, process in known.items() if process is None]
        keeping.looked.note(
            at_s=self._now_s(),
            seen=(mark, before, after),
            pids={process.pid for process in known.values() if process is not None},
            settled=not reaped and not missing and not _is_leaving(known, after, listed),
        )
        self._slices.looked_at(keeping)
        return missing

    def _reap_missing(self, missing: Iterable[tuple[Keeping, ProcUsage]]) -> None:
        """Those that no process of the machine is."""
        began_s = self._now_s()
        there = in_other_namespaces()
        pids = {inner.pid for inner in there}
        for keeping, proc in missing:
            if proc.state == ProcState.TAKEN:  # it holds nothing yet, and does not say of which namespace its pid is
                gone = proc.pid not in pids and identify(proc.pid) is None
            else:
                gone = _found(proc, there) is None
            if gone:
                with contextlib.suppress(CalabashError):
                    self._library.reap(keeping.usage, proc)
        ended_s = self._now_s()
        self._next_pass_s = ended_s + (ended_s - began_s) / PASS_SHARE

    def _learn(self, uuid: DeviceUuid, proc: ProcUsage, index: int, look: ProcessLook) -> None:
        """Where no card could be tried out: the least that a process with one context has held beside its own."""
        model = self._inventory.model_of(uuid)
        if proc.context_count != 1 or not look.quiet or not look.driver_bytes:
            return
        cost = look.driver_bytes - (proc.used_bytes[index] - proc.context_bytes[index])
        if model not in self._context_bytes:
            self.learn_context(model, cost)

    def _host_process(
        self, keeping: Keeping, proc: ProcUsage, members: Callable[[], dict[InnerPid, Process]]
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
            self._library.set_host_pid(keeping.usage, proc, found.pid)
        return found


def _is_leaving(known: Mapping[ProcessKey, Process | None], entries: Entries, listed: Collection[int]) -> bool:
    """Return True if a process has memory by its entry and by no driver: it ends, and the kernel still knows it."""
    return any(
        process is not None
        and process.pid not in listed
        and (any(entries[key].used_bytes) or entries[key].context_count > 0)
        for key, process in known.items()
    )


def _members(keeping: Keeping) -> dict[InnerPid, Process]:
    """Those that are known to belong to it."""
    found = keeping.members() if keeping.members else holders([keeping.lease])[keeping.lease]
    return by_inner_pid(process.pid for process in found)


def _found(proc: ProcUsage, processes: dict[InnerPid, Process]) -> Process | None:
    """The process that an entry names; without a start time its pid has to do."""
    found = processes.get(InnerPid(namespace=proc.pid_namespace, pid=proc.pid))
    return found if found is not None and proc.start_time in {0, found.start_time} else None


def _entries(keeping: Keeping) -> Entries:
    return {(proc.index, proc.generation): proc for proc in keeping.usage.procs()}


def _look_at(before: ProcUsage | None, after: ProcUsage, index: int, driver_bytes: int) -> ProcessLook:
    first = before if before is not None else after
    return ProcessLook(
        driver_bytes=driver_bytes,
        ledger_before_bytes=first.used_bytes[index],
        ledger_after_bytes=after.used_bytes[index],
        transactions_before=first.transactions[index] if before is not None else -1,
        transactions_after=after.transactions[index],
        reserving=first.reserving_bytes[index] > 0 or after.reserving_bytes[index] > 0,
    )
