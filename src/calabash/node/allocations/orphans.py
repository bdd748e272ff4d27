"""Orphaned allocations: processes use them, but the journal does not know them, for example because it was lost.

The devices of an orphan get no new allocations until its processes have ended.
"""

from __future__ import annotations

from collections.abc import Collection

from calabash.model.device import DeviceUuid
from calabash.model.errors import CalabashError
from calabash.model.request import AllocationId
from calabash.node.membership.protocol import Membership
from calabash.node.slots.protocol import Slots


class Orphans:
    """Orphaned allocations of this node. Changed under the agent's lock, read from any thread."""

    def __init__(self, slots: Slots, membership: Membership) -> None:
        self._slots = slots
        self._membership = membership
        self._devices: dict[AllocationId, tuple[DeviceUuid, ...]] = {}

    def adopt(self, found: Collection[AllocationId]) -> None:
        """Register allocations without a journal entry. Those without member processes are removed at once."""
        for allocation in sorted(found):
            if self._membership.remove(allocation):
                self._slots.remove(allocation)
            else:
                self._devices[allocation] = self._devices_of(allocation)

    def sweep(self) -> None:
        """Remove the orphans whose member processes have ended."""
        for allocation in list(self._devices):
            if self._membership.remove(allocation):
                self._slots.remove(allocation)
                del self._devices[allocation]

    def on(self, device: DeviceUuid) -> list[AllocationId]:
        """Return the orphans that have a slice of a device."""
        return [allocation for allocation, devices in list(self._devices.items()) if device in devices]

    def _devices_of(self, allocation: AllocationId) -> tuple[DeviceUuid, ...]:
        try:
            return self._slots.pages(allocation).limits.uuids
        except CalabashError:
            return ()
