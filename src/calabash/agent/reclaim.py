"""Keeps the ledgers true: takes the dead off the counters and publishes residual memory.

A process is dead for the ledger when the kernel no longer knows it (pid and start time) *and* the driver no longer
lists it: only then is its memory really free. What tenants wrote about themselves is used for bookkeeping of that very
tenant and for nothing else.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from calabash.agent import pages
from calabash.agent.inventory import Inventory
from calabash.agent.pagelib import PageLibrary
from calabash.agent.pages import ProcUsage
from calabash.agent.pages_layout import ProcState
from calabash.agent.residual import Look, Residual
from calabash.model.device import DeviceUuid
from calabash.model.errors import CalabashError
from calabash.model.units import MIB
from calabash.seams.host.processes import Process, alive, holders, identify, namespace_pids, pid_namespace

CONTEXT_BYTES_MAX = 4096 * MIB

HostBytes = dict[int, int]  # pid in our namespace -> bytes


@dataclass(slots=True)
class Keeping:
    """One allocation's pages and what is remembered between two looks."""

    usage: pages.UsagePage
    limits: pages.LimitsPage
    lease: Path
    residuals: list[Residual]
    members: Callable[[], list[Process]] | None = None  # who belongs to it, where no lease says so
    listed: list[set[int]] = field(default_factory=list)  # per device: pids that the driver listed last time


class Reclaimer:
    """One look at every ledger per call of ``tick``; asks each driver once per device and look."""

    def __init__(self, inventory: Inventory, library: PageLibrary) -> None:
        self._inventory = inventory
        self._library = library
        self._own_namespace = pid_namespace()
        self._context_bytes: dict[str, int] = {}  # by model: cards of a model cost the same

    def learn_context(self, model: str, context_bytes: int) -> None:
        """What an empty context costs on cards of a model."""
        if 0 < context_bytes <= CONTEXT_BYTES_MAX:
            self._context_bytes[model] = context_bytes

    def publish_context(self, limits: pages.LimitsPage) -> None:
        """Tell a slot what the first context on each of its devices costs."""
        for index, uuid in enumerate(limits.uuids):
            limits.set_context_bytes(index, self._context_bytes.get(self._inventory.model_of(uuid), 0))

    def tick(self, keepings: Iterable[Keeping]) -> None:
        """Look at all. Drivers are asked for the devices that are used only."""
        everything = list(keepings)
        before = [self._ledgers(keeping) for keeping in everything]
        used = {uuid for keeping in everything for uuid in keeping.limits.uuids}
        truth = {uuid: self._driver_bytes(uuid) for uuid in used}
        for keeping, ledgers in zip(everything, before, strict=True):
            with contextlib.suppress(CalabashError):
                self._look(keeping, ledgers, truth)

    def _driver_bytes(self, uuid: DeviceUuid) -> HostBytes | None:
        """Bytes per process of a device; None when it does not answer: then nothing is known, and nothing is held."""
        try:
            found = self._inventory.driver_of(uuid).processes(uuid)
        except (CalabashError, KeyError):
            return None
        return {p.pid: p.used_mib * MIB for p in found}

    def _ledgers(self, keeping: Keeping) -> list[int]:
        procs = keeping.usage.procs()
        return [_ledger_bytes(keeping, procs, index)[0] for index in range(keeping.limits.device_count)]

    def _look(self, keeping: Keeping, before: list[int], truth: dict[DeviceUuid, HostBytes | None]) -> None:
        procs = keeping.usage.procs()
        known = {proc.index: self._host_process(keeping, proc) for proc in procs}
        listed: list[set[int]] = []
        for index, uuid in enumerate(keeping.limits.uuids):
            driver = truth[uuid]
            if driver is None:
                listed.append(set())
                continue
            pids = {process.pid for process in known.values() if process is not None and process.pid in driver}
            listed.append(pids)
            ledger, reserving = _ledger_bytes(keeping, procs, index)
            look = Look(
                driver_bytes=sum(driver[pid] for pid in pids),
                ledger_before_bytes=before[index],
                ledger_after_bytes=ledger,
                reserving=reserving > 0,
            )
            self.publish_context(keeping.limits)
            keeping.limits.set_residual(index, keeping.residuals[index].see(look))
            self._settle(keeping, procs, known, index, driver)
        for proc in procs:
            process = known[proc.index]
            gone = process is None or not alive(process)
            if gone and not any(process is not None and process.pid in pids for pids in listed):
                self._library.reclaim(keeping.usage, proc)
        keeping.listed = listed

    def _settle(
        self,
        keeping: Keeping,
        procs: list[ProcUsage],
        known: dict[int, Process | None],
        index: int,
        driver: HostBytes,
    ) -> None:
        """Provisional charges of processes whose contexts the published residual covers by now."""
        uuid = keeping.limits.uuids[index]
        model = self._inventory.model_of(uuid)
        settled = [
            p for p in procs if not p.context_bytes[index] and p.context_count and _listed(known[p.index], driver)
        ]
        room = keeping.limits.device(index).residual_bytes - len(settled) * self._context_bytes.get(model, 0)
        for proc in procs:
            process = known[proc.index]
            provisional = proc.context_bytes[index]
            if proc.state is not ProcState.LIVE or not provisional or process is None:
                continue
            seen_before = bool(keeping.listed) and process.pid in keeping.listed[index]
            if process.pid not in driver or not seen_before or room < provisional:
                continue
            room -= provisional
            own = proc.used_bytes[index] - proc.reserving_bytes[index] - provisional
            self.learn_context(model, driver[process.pid] - own)
            self._library.settle_context(keeping.usage, proc, index)

    def _host_process(self, keeping: Keeping, proc: ProcUsage) -> Process | None:
        """The process as this namespace knows it; None when it is gone."""
        if proc.host_pid > 0:
            return Process(pid=proc.host_pid, start_time=proc.start_time)
        if proc.pid_namespace in {0, self._own_namespace}:
            if proc.start_time:
                return Process(pid=proc.pid, start_time=proc.start_time)
            return identify(proc.pid)
        members = keeping.members() if keeping.members else holders([keeping.lease])[keeping.lease]
        for pid in (p.pid for p in members):
            if pid_namespace(pid) == proc.pid_namespace and namespace_pids(pid)[-1:] == (proc.pid,):
                self._library.set_host_pid(keeping.usage, proc, pid)
                return identify(pid)
        return None


def _listed(process: Process | None, driver: HostBytes) -> bool:
    return process is not None and process.pid in driver


def _ledger_bytes(keeping: Keeping, procs: list[ProcUsage], index: int) -> tuple[int, int]:
    """What the ledger counts as really allocated on a device, and what is being reserved."""
    reserving = sum(p.reserving_bytes[index] for p in procs)
    provisional = sum(p.context_bytes[index] for p in procs)
    return max(0, keeping.usage.device(index).used_bytes - reserving - provisional), reserving
