"""Periodic rounds of the auditor and of the process census, which emit events and may end allocations.

The rounds call drivers and hold no lock meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from calabash.adapters.clock import Clock
from calabash.model.device import DeviceUuid
from calabash.model.errors import Reason
from calabash.model.messages import Message, Text
from calabash.model.request import AllocationId
from calabash.model.units import MIB
from calabash.node.audit.auditor import Auditor
from calabash.node.audit.process_census import PERIOD_NS, Caps, Census, Views, describe_process
from calabash.node.devices.inventory import Inventory
from calabash.node.events import Events
from calabash.node.membership.protocol import Membership
from calabash.node.processes.inherited import PoolProcesses
from calabash.node.processes.reaper import OpenSlot
from calabash.node.processes.unmanaged import OverUse, UnmanagedPolicy, UnmanagedProcess

PATIENCE_NS = 300_000_000  # a driver that takes longer may wait for a stopped process
ROUND_S = 0.1
REST_S = 0.2  # no allocation has worked recently
EMPTY_S = PERIOD_NS / 1e9  # no slot is open: only unmanaged processes are searched for


class AuditedAllocations(Protocol):
    """Operations on allocations that the audit of GPU use needs; ``node.allocation_control`` implements them."""

    def capped_slots(self) -> Sequence[OpenSlot]:
        """Return the open slots of all allocations with a memory limit."""
        ...

    def open_slots(self) -> Sequence[OpenSlot]:
        """Return the open slots of all allocations, which list the devices and partitions that each may use."""
        ...

    def entitled(self, device: DeviceUuid) -> Collection[AllocationId]:
        """Return the allocations that may use a device, including those that the journal does not know."""
        ...

    def end(self, allocation: AllocationId, reason: str, explanation: Text) -> None:
        """Request the end of an allocation; ``reason`` and ``explanation`` are journalled and shown to its user."""
        ...


class NodeAudit:
    """Audit of one node: reported GPU time, unmanaged processes, and memory beyond limits.

    ``round`` is called from one thread, ``unmanaged`` from any.

    Args:
        policy: action on unmanaged processes.
        own: processes of the pool itself, which are not unmanaged.
    """

    def __init__(
        self,
        inventory: Inventory,
        membership: Membership,
        clock: Clock,
        allocations: AuditedAllocations,
        events: Events,
        *,
        policy: UnmanagedPolicy,
        own: PoolProcesses | None = None,
    ) -> None:
        self._inventory = inventory
        self._membership = membership
        self._clock = clock
        self._allocations = allocations
        self._next_ns = 0
        self._asking_since_ns = 0  # 0: no driver is being asked
        # With leases a process can leave its allocation or enter another one.
        proven = membership.form == "kernel"
        reports = _Reports(inventory, allocations, events, proven=proven)
        self._census = Census(
            inventory,
            membership.allocation_of,
            allocations.entitled,
            reports,
            policy=policy,
            own=own,
        )
        self._auditor = Auditor(
            inventory,
            membership,
            freezes=proven,
            report=reports.under_reported,
        )

    @property
    def policy(self) -> UnmanagedPolicy:
        """Action on unmanaged processes."""
        return self._census.policy

    def unmanaged(self, device: DeviceUuid) -> tuple[UnmanagedProcess, ...]:
        """Return the confirmed unmanaged processes of a device."""
        return self._census.unmanaged(device)

    def round(self) -> float | None:
        """Run auditor and census if they are due; return the seconds until the next call, None for the usual period."""
        now_ns = self._clock.monotonic_ns()
        if now_ns < self._next_ns:
            return self._until_next(self._auditor.step(now_ns), now_ns)
        self._next_ns = now_ns + int(ROUND_S * 1e9)
        capped_slots = self._allocations.capped_slots()
        self._asking_since_ns = now_ns
        try:
            self._auditor.tick(capped_slots, now_ns)
            self._census.tick(lambda: _caps(capped_slots), now_ns, views=lambda: _views(self._allocations.open_slots()))
        finally:
            self._asking_since_ns = 0
        now_ns = self._clock.monotonic_ns()
        return self._until_next(self._auditor.step(now_ns), now_ns)

    def thaw_for_driver(self) -> None:
        """Continue stopped allocations while a driver does not answer, as the driver may wait for a stopped process.

        Takes effect after PATIENCE_NS. Called from a thread that calls no driver.
        """
        since_ns = self._asking_since_ns
        if since_ns and self._clock.monotonic_ns() - since_ns > PATIENCE_NS:
            self._auditor.thaw_for_driver()

    def _until_next(self, paced_s: float | None, now_ns: int) -> float | None:
        if paced_s is None:
            if self._auditor.is_watching:
                return None
            return REST_S if self._allocations.capped_slots() else EMPTY_S
        return min(paced_s, max(0.0, (self._next_ns - now_ns) / 1e9))

    def close(self) -> None:
        """Let the processes of stopped allocations run again: after the end of the agent, nothing would do that."""
        self._auditor.thaw_all()


class _Reports:
    """Reports findings of the census and the auditor as events, and ends allocations that exceed their memory.

    If ``proven`` is False, excess memory is only reported. It is True if control groups show which processes belong to
    an allocation, because lease files do not prove that.
    """

    def __init__(self, inventory: Inventory, allocations: AuditedAllocations, events: Events, *, proven: bool) -> None:
        self._inventory, self._allocations, self._events, self._proven = inventory, allocations, events, proven

    def _index(self, uuid: DeviceUuid) -> int:
        return next((d.index for d in self._inventory.devices() if d.uuid == uuid), -1)

    def changed(self) -> None:
        self._events.changed()

    def process_found(self, found: UnmanagedProcess) -> None:
        message = Message(
            "{process} of device {device} and has no slice of it",
            process=describe_process(found),
            device=self._index(found.device),
        )
        self._events.emit(
            "stranger", reason=Reason.STRANGER, allocation=found.allocation or "", device=found.device, message=message
        )

    def process_left(self, found: UnmanagedProcess) -> None:
        message = f"pid {found.process.pid} has left device {self._index(found.device)}"
        self._events.emit(
            "stranger_gone",
            reason=Reason.STRANGER,
            allocation=found.allocation or "",
            device=found.device,
            message=message,
        )

    def over_use(self, use: OverUse) -> None:
        message = (
            f"its {use.processes} processes hold {use.used_mib} MiB of device {self._index(use.device)},"
            f" it was given {use.cap_mib} MiB"
        )
        self._events.emit(
            "over_use", reason=Reason.OVER_USE, allocation=use.allocation, device=use.device, message=message
        )
        if self._proven:
            self._allocations.end(use.allocation, Reason.OVER_USE, message)

    def under_reported(self, allocation: AllocationId, uuid: DeviceUuid, owed_ns: int) -> None:
        message = (
            f"the driver saw {owed_ns // 1_000_000} ms of GPU time on device {self._index(uuid)}"
            " that its usage page does not report; they are charged"
        )
        self._events.emit(
            "under_reported", reason=Reason.UNDER_REPORTED, allocation=allocation, device=uuid, message=message
        )


def _views(open_slots: Sequence[OpenSlot]) -> Views:
    return {slot.limits.allocation: slot.limits.uuids for slot in open_slots}


def _caps(open_slots: Sequence[OpenSlot]) -> Caps:
    return {
        (slot.limits.allocation, uuid): slot.limits.cap_bytes(index) // MIB
        for slot in open_slots
        for index, uuid in enumerate(slot.limits.uuids)
        if slot.limits.device(index).memory_limit_bytes
    }
