"""List the processes on all devices, assign them to allocations, and act on unmanaged ones by the policy."""

from __future__ import annotations

import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from calabash.adapters.host.processes import Process, command_name, identify, owner, send_signal, user_name
from calabash.model.device import DeviceProcess, DeviceUuid
from calabash.model.errors import CalabashError
from calabash.model.messages import ProcessDescription
from calabash.model.request import AllocationId
from calabash.node.devices.inventory import Inventory
from calabash.node.processes.inherited import PoolProcesses
from calabash.node.processes.unmanaged import (
    ListedProcess,
    OverUse,
    OverUses,
    UnmanagedPolicy,
    UnmanagedProcess,
    judge_listing,
)

PERIOD_NS = 400_000_000
LISTING_AGE_NS = 200_000_000  # age up to which a list that another component has read is used

Caps = Mapping[tuple[AllocationId, DeviceUuid], int]
Views = Mapping[AllocationId, Collection[DeviceUuid]]


class CensusListener(Protocol):
    """Recipient of the findings of a census; called from its thread."""

    def process_found(self, found: UnmanagedProcess) -> None:
        """Take note of an unmanaged process that was confirmed on a device."""
        ...

    def process_left(self, found: UnmanagedProcess) -> None:
        """Take note of an unmanaged process that has left its device."""
        ...

    def over_use(self, use: OverUse) -> None:
        """Take note of an allocation that uses more memory than its limit."""
        ...

    def changed(self) -> None:
        """Take note that capacity may have changed."""
        ...


class Census:
    """Processes on every device. ``tick`` is called from one thread, ``unmanaged`` from any.

    Args:
        allocation_of: returns the allocation of a process.
        entitled: returns the allocations that may use a device, including those that the journal does not know.
        events: recipient of the findings.
        policy: action on unmanaged processes.
        own: processes that an earlier pool started and this pool continues to use; they are not unmanaged.
    """

    def __init__(
        self,
        inventory: Inventory,
        allocation_of: Callable[[int], AllocationId | None],
        entitled: Callable[[DeviceUuid], Collection[AllocationId]],
        events: CensusListener,
        *,
        policy: UnmanagedPolicy = UnmanagedPolicy.TELL,
        own: PoolProcesses | None = None,
    ) -> None:
        self.policy = policy
        self._own = own or PoolProcesses()
        self._inventory = inventory
        self._allocation_of = allocation_of
        self._entitled = entitled
        self._events = events
        self._unmanaged: dict[DeviceUuid, tuple[UnmanagedProcess, ...]] = {}
        self._owners: dict[Process, AllocationId] = {}
        self._pids: dict[int, Process] = {}
        self._over = OverUses()
        self._next_ns = 0

    def unmanaged(self, device: DeviceUuid) -> tuple[UnmanagedProcess, ...]:
        """Return the confirmed unmanaged processes of a device."""
        return tuple(s for s in self._unmanaged.get(device, ()) if s.confirmed)

    def tick(self, caps: Callable[[], Caps], now_ns: int, *, views: Callable[[], Views] = dict) -> None:
        """List the processes of all devices, if PERIOD_NS has passed.

        Args:
            caps: returns the memory limits in MiB; called only if a process of an allocation is listed.
            views: returns the devices and partitions that each allocation may use; called only if a device has
                partitions.
        """
        if now_ns < self._next_ns:
            return
        self._next_ns = now_ns + PERIOD_NS
        pids: dict[int, Process] = {}
        uses: list[OverUse] = []
        known_caps: Caps | None = None
        for device in self._inventory.devices():
            try:
                processes = self._inventory.processes(device.uuid, within_ns=LISTING_AGE_NS)
            except CalabashError:
                continue  # unknown now: keep the previous result
            if not processes and not self._unmanaged.get(device.uuid):
                continue
            allowed = views() if any(process.part for process in processes) else {}
            listed = [self._listed(process, allowed) for process in processes]
            pids.update((entry.process.pid, entry.process) for entry in listed)
            self._judge(device.uuid, listed)
            if any(entry.allocation is not None for entry in listed):
                known_caps = caps() if known_caps is None else known_caps
                uses += _uses(device.uuid, listed, known_caps)
        self._pids = pids
        self._owners = {process: name for process, name in self._owners.items() if pids.get(process.pid) == process}
        self._over = self._over.updated(uses, now_ns)
        for use in self._over.lasting:
            self._events.over_use(use)

    def _judge(self, uuid: DeviceUuid, listed: Sequence[ListedProcess]) -> None:
        before = self.unmanaged(uuid)
        known = self._unmanaged.get(uuid, ())
        verdict = judge_listing(known, uuid, listed, entitled=self._entitled(uuid), policy=self.policy)
        self._unmanaged[uuid] = verdict.unmanaged
        for found in verdict.found:
            self._events.process_found(found)
        for found in verdict.kill:
            send_signal(found.process, signal.SIGKILL)
        for found in verdict.gone:
            self._events.process_left(found)
        if sum(s.used_mib for s in before) != sum(s.used_mib for s in self.unmanaged(uuid)):
            self._events.changed()

    def _listed(self, entry: DeviceProcess, allowed: Views) -> ListedProcess:
        """Return a process with its allocation. A process that is just ending keeps its last allocation."""
        process = identify(entry.pid) or self._pids.get(entry.pid) or Process(pid=entry.pid, start_time=0)
        allocation = self._allocation_of(entry.pid) or self._owners.get(process)
        if allocation is not None:
            self._owners[process] = allocation
        return ListedProcess(
            process=process,
            used_mib=entry.used_mib,
            uid=owner(process),
            command=command_name(process),
            allocation=allocation,
            ours=allocation is None and self._own.has(entry.pid),
            part=entry.part,
            elsewhere=allocation is not None and _is_elsewhere(entry.part, allowed.get(allocation)),
        )


def _is_elsewhere(part: str, allowed: Collection[DeviceUuid] | None) -> bool:
    """Return True if a process uses a partition that is not among those of its allocation."""
    return bool(part) and allowed is not None and part not in allowed


def _uses(uuid: DeviceUuid, listed: Sequence[ListedProcess], caps: Caps) -> list[OverUse]:
    held: dict[AllocationId, list[int]] = {}
    for entry in listed:
        if entry.allocation is not None:
            held.setdefault(entry.allocation, []).append(entry.used_mib)
    return [
        OverUse(allocation=name, device=uuid, used_mib=sum(used), cap_mib=caps[name, uuid], processes=len(used))
        for name, used in held.items()
        if (name, uuid) in caps
    ]


def describe_process(found: UnmanagedProcess) -> ProcessDescription:
    """Return a description such as ``python (pid 4711, user bob) holds 20480 MiB``."""
    who = f"{found.command or 'a process'} (pid {found.process.pid}"
    if found.uid >= 0:
        who += f", user {user_name(found.uid)}"
    if found.allocation is not None:
        who += f", of allocation {found.allocation} that has no slice here"
    return ProcessDescription(f"{who}) holds {found.used_mib} MiB")
