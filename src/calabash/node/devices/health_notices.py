"""Notification of subscribers, tenants and the programs of tenants about changes in the health of cards."""

from __future__ import annotations

import signal
from collections.abc import Callable, Collection, Sequence

from calabash.adapters.host.processes import Process, owner, send_signal
from calabash.model.allocation import AllocationRecord
from calabash.model.device import DeviceUuid, Health
from calabash.model.messages import Message, Text
from calabash.model.request import AllocationId, Isolation
from calabash.node.devices.device import HealthChange
from calabash.node.devices.inventory import Inventory
from calabash.node.events import Events
from calabash.node.health.conditions import HealthEvent
from calabash.node.membership.protocol import Membership
from calabash.sharing.registry import SHARING_MODES

_HITS = {HealthEvent.APP_FAULT, HealthEvent.NEEDS_RESET, HealthEvent.NEEDS_REPLACE}
_SIGNALLED = {Health.DRAINING, Health.LOST}


class HealthNotifier:
    """Notifier of health changes on one node. Methods may be called from any thread.

    Args:
        records: returns all held allocations.
    """

    def __init__(
        self,
        inventory: Inventory,
        events: Events,
        membership: Membership,
        records: Callable[[], list[AllocationRecord]],
    ) -> None:
        self._inventory = inventory
        self._events = events
        self._membership = membership
        self._records = records
        self._subscribers: list[Callable[[], None]] = []

    def subscribe(self, changed: Callable[[], None]) -> None:
        """Register a callback that is called when the health of a card has changed, possibly under a lock."""
        self._subscribers.append(changed)

    def notify(self, changes: Sequence[HealthChange], tenants: Collection[AllocationId] | None = None) -> None:
        """Emit events for changes of health, and signal the programs of affected tenants that have requested it.

        Args:
            tenants: affected allocations; None: all that have a slice of the device, or a process on its partition.
        """
        for change in changes:
            part = f" ({change.part})" if change.part else ""
            what = Message(
                "{before} -> {after}{part}: {cause}",
                before=change.before,
                after=change.after,
                part=part,
                cause=change.cause,
            )
            self._events.emit("health", reason=change.after, device=change.device, message=what)
            for record in self._concerned(change, tenants) if change.notify_tenants else ():
                self._events.emit(
                    "device_unhealthy",
                    reason="unhealthy",
                    allocation=record.id,
                    device=change.device,
                    message=Message(
                        "device {device}{part} of this allocation is {health}: {cause}",
                        device=change.device,
                        part=part,
                        health=change.after,
                        cause=change.cause,
                    ),
                )
                if change.fault and change.after in _SIGNALLED:
                    self._signal(record)
        for changed in self._subscribers if changes else ():
            changed()
        if any(change.after is Health.HEALTHY for change in changes):
            self._events.changed()

    def part_happened(
        self, device: DeviceUuid, part: str, event: HealthEvent, cause: Text, tenants: Collection[AllocationId]
    ) -> None:
        """Apply a health event to a partition or service that a mode supervises, and notify the allocations that use it.

        Their programs are signalled even if the event does not change the health of the partition.
        """
        changes = self._inventory.health.part_happened(device, part, event, cause)
        self.notify(changes, tenants)
        if event in _HITS and not any(change.notify_tenants for change in changes):
            for record in self._records():
                if record.id in tenants:
                    self._signal(record)

    def _concerned(self, change: HealthChange, tenants: Collection[AllocationId] | None) -> list[AllocationRecord]:
        on_it = [r for r in self._records() if any(part.device == change.device for part in r.placement.slices)]
        if tenants is None and change.part:
            reading = self._inventory.reading(change.device)
            pids = [p.pid for p in reading.processes if p.part == change.part] if reading is not None else []
            tenants = {found for pid in pids if (found := self._membership.allocation_of(pid)) is not None}
        return on_it if tenants is None else [r for r in on_it if r.id in tenants]

    def _signal(self, record: AllocationRecord) -> None:
        """Send the requested signal to the programs of an allocation.

        Right before the signal it is checked that a process is still a member, as its PID may have been reused.
        """
        if not record.request.on_fault:
            return
        number = signal.Signals[record.request.on_fault]
        mode = SHARING_MODES.get(record.placement.mode)
        if mode is not None and mode.isolation is Isolation.BROKERED:  # its members are workers, which get no signal
            asker = Process(pid=record.client_pid, start_time=record.client_start_time)
            send_signal(asker, number, still=lambda found: owner(found) == record.uid)
            return
        for process in self._membership.processes(record.id):
            send_signal(process, number, still=lambda found: self._is_member(found, record.id))

    def _is_member(self, process: Process, allocation: AllocationId) -> bool:
        return self._membership.allocation_of(process.pid) == allocation
