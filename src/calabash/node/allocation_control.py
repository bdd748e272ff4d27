"""Operations on held allocations for the audit and the executors of sharing modes; they take the agent's lock."""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from pathlib import Path

from calabash.adapters.host.cgroups.marks import mark
from calabash.adapters.host.processes import Process
from calabash.model.device import DeviceUuid
from calabash.model.errors import CalabashError, Reason
from calabash.model.messages import Text
from calabash.model.request import AllocationId
from calabash.node.allocations.retention import RetentionPolicy
from calabash.node.allocations.table import Allocations, holders_of
from calabash.node.membership.protocol import Membership
from calabash.node.metering.usage_tracker import UsageTracker
from calabash.node.processes.reaper import OpenSlot
from calabash.node.slots.protocol import Slots


class AllocationControl:
    """Held allocations with their slots and members. Implements ``HeldAllocations`` and ``AuditedAllocations``.

    Args:
        lock: lock of the agent, under which held allocations change.
        usage_tracker: keeps the pages of slots open.
        retention: decides if an allocation is abandoned.
    """

    def __init__(
        self,
        *,
        lock: threading.RLock,
        allocations: Allocations,
        membership: Membership,
        slots: Slots,
        usage_tracker: UsageTracker,
        retention: RetentionPolicy,
    ) -> None:
        self._lock, self._allocations, self._retention = lock, allocations, retention
        self._membership, self._slots, self._usage_tracker = membership, slots, usage_tracker

    def capped_slots(self) -> Sequence[OpenSlot]:
        """Return the open slots of all allocations with a memory limit."""
        return self._usage_tracker.capped_slots()

    def open_slots(self) -> Sequence[OpenSlot]:
        """Return the open slots of all allocations."""
        return self._usage_tracker.open_slots()

    def slot_of(self, allocation: AllocationId) -> Path:
        """Return the directory of the slot of an allocation."""
        return self._slots.path(allocation)

    def allocation_of(self, pid: int) -> AllocationId | None:
        """Return the allocation of a process."""
        return self._membership.allocation_of(pid)

    def entitled(self, device: DeviceUuid) -> Collection[AllocationId]:
        """Return the allocations that may use a device, including those that the journal does not know."""
        return {*holders_of(self._allocations.records(), device), *self._allocations.orphaned(device)}

    def end(self, allocation: AllocationId, reason: str, explanation: Text) -> None:
        """Request the end of an allocation."""
        with self._lock:
            self._allocations.end(allocation, reason=reason, explanation=explanation)

    def is_ending(self, allocation: AllocationId) -> bool:
        """Return True if the end of an allocation has been requested."""
        return self._allocations.ending(allocation) is not None

    def is_abandoned(self, allocation: AllocationId) -> bool:
        """Return True if the tenant of an allocation cannot use it again, although its end has not been requested."""
        record = self._allocations.get(allocation)
        return record is not None and self._retention.is_abandoned(record)

    def join(self, allocation: AllocationId, process: Process) -> None:
        """Make a process of the pool a member of an allocation, which then is running. Raises CalabashError."""
        admit(self._membership, self._slots, allocation, process)
        with self._lock:
            if self._allocations.started(allocation, process) is None:
                raise CalabashError(
                    f"allocation {allocation} has just ended", reason=Reason.CONFLICT, hint="request it again"
                )


def admit(membership: Membership, slots: Slots, allocation: AllocationId, process: Process) -> None:
    """Make a process a member of an allocation.

    If slots are sealed, the process is also marked, and then accepts no slot that is not sealed.

    Raises:
        CalabashError: the process could not be made a member.
    """
    membership.enter(allocation, process)
    if slots.sealed and membership.group(allocation):
        mark(process)
