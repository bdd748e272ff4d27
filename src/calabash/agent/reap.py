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
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from calabash.agent import pages
from calabash.agent.inventory import Inventory
from calabash.agent.pagelib import PageLibrary
from calabash.agent.pages import ProcUsage
from calabash.agent.pages_layout import ProcState
from calabash.agent.residual import ProcessKey, ProcessLook, Residual
from calabash.model.device import DeviceUuid
from calabash.model.errors import CalabashError
from calabash.model.units import MIB
from calabash.seams.host.processes import (
    InnerPid,
    Process,
    alive,
    by_inner_pid,
    holders,
    identify,
    in_other_namespaces,
    pid_namespace,
)

CONTEXT_BYTES_MAX = 4096 * MIB
PASS_SHARE = 0.05  # of the time, that passes over all processes take at most, whatever tenants write

HostBytes = dict[int, int]  # pid in our namespace -> bytes
Entries = dict[ProcessKey, ProcUsage]


@dataclass(slots=True)
class Keeping:
    """One allocation's pages and what is remembered between two looks."""

    usage: pages.UsagePage
    limits: pages.LimitsPage
    lease: Path
    residuals: list[Residual]
    members: Callable[[], list[Process]] | None = None  # who belongs to it, where no lease says so

    @property
    def is_capped(self) -> bool:
        """Whether it has an amount of memory; else its pages only narrow what devices it sees."""
        return self.limits.device(0).memory_limit_bytes != 0


class Reaper:
    """One look at every ledger per call of ``tick``; asks each driver once per device and look."""

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
        """Look at all. Drivers are asked for the devices that are used only."""
        everything = list(keepings)
        before = [_entries(keeping) for keeping in everything]
        used = {uuid for keeping in everything for uuid in keeping.limits.uuids}
        truth = {uuid: self._driver_bytes(uuid) for uuid in used}
        missing: list[tuple[Keeping, ProcUsage]] = []
        for keeping, entries in zip(everything, before, strict=True):
            with contextlib.suppress(CalabashError):
                missing += ((keeping, proc) for proc in self._look(keeping, entries, truth))
        if missing and self._now_s() >= self._next_pass_s:
            self._reap_missing(missing)

    def _driver_bytes(self, uuid: DeviceUuid) -> HostBytes | None:
        """Bytes per process of a device; None when it does not answer: then nothing is known, and nothing is held."""
        try:
            found = self._inventory.driver_of(uuid).processes(uuid)
        except (CalabashError, KeyError):
            return None
        return {p.pid: p.used_bytes for p in found}

    def _look(self, keeping: Keeping, before: Entries, truth: dict[DeviceUuid, HostBytes | None]) -> list[ProcUsage]:
        """Returns the entries whose process is nobody that is known."""
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
        for key, process in known.items():
            if process is not None and not alive(process) and process.pid not in listed:
                self._library.reap(keeping.usage, after[key])
        return [after[key] for key, process in known.items() if process is None]

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
