"""Executor of mode timeslice: programs share devices by the driver's time slices.

The shim limits the memory of slices that request memory. The time slices have the duration that the operator set for the
device, if the driver supports that.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from calabash.adapters.gpu.nvidia.timeslice_intervals import Intervals
from calabash.model.allocation import AllocationRecord
from calabash.model.device import DeviceUuid
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import AllocationId
from calabash.model.units import MIB, format_mib
from calabash.node.modes.protocol import NodeTools, ViewOnly
from calabash.node.modes.timeslice.durations import TimeSliceDurations
from calabash.node.processes.reaper import Reaper
from calabash.node.slots.content import SlotDevice
from calabash.node.slots.native import PageLibrary
from calabash.node.slots.open_pages import Pages
from calabash.sharing import timeslice

CHECK_EVERY_S = 30.0  # interval at which the durations are read from the driver


class TimeSliceExecutor(ViewOnly):
    """Executor of time-sliced devices, with a memory limit if one is requested."""

    name = timeslice.MODE.name

    def __init__(self, tools: NodeTools) -> None:
        super().__init__(tools)
        intervals = Intervals(tools.environment, tools.driver_files)
        self._durations = TimeSliceDurations(tools.home / "timeslices.json", intervals, wanted=self._wanted)
        self._tenants: dict[AllocationId, dict[DeviceUuid, int]] = {}  # cards, and the MiB granted on each
        self._due_s = 0.0

    def prepare(self, record: AllocationRecord) -> tuple[SlotDevice, ...]:
        """Return the limits of the slot. Raises BAD_FILE if memory is requested and the shim has not been built."""
        capped = any(part.memory_mib for part in record.placement.slices)
        if capped and not self._tools.library.is_file():
            raise CalabashError(
                f"{self._tools.library.name} has not been built, so memory cannot be limited in mode {self.name}",
                reason=Reason.BAD_FILE,
                hint="build it with: make native; or request no memory",
            )
        return tuple(
            SlotDevice(uuid=part.device, memory_limit_bytes=part.memory_mib * MIB) for part in record.placement.slices
        )

    def provide(self, record: AllocationRecord) -> tuple[SlotDevice, ...]:
        """Set the time-slice durations of the devices. A driver that does not support them causes only a warning."""
        devices = self.prepare(record)
        self._tenants[record.id] = _cards(record)
        self._durations.apply(frozenset(self._tenants[record.id]))
        return devices

    def enter(self, record: AllocationRecord, pages: Pages) -> None:
        if any(part.memory_mib for part in record.placement.slices):
            Reaper(self._tools.inventory, PageLibrary(), self._tools.contexts).publish_context(pages.limits)

    def warnings(self, record: AllocationRecord) -> tuple[str, ...]:
        found = []
        for part in record.placement.slices:
            wrong = self._durations.wrong(part.device)
            if wrong:
                found.append(f"the driver's own time-slice duration is used: {wrong}")
            if part.memory_mib and self._uncapped_beside(part.device):
                found.append(
                    f"{format_mib(part.memory_mib)} is a limit and not guaranteed: other allocations on the device have"
                    " no limit and may use all of its memory"
                )
        return tuple(found)

    def leave(self, record: AllocationRecord) -> None:
        """Drop the allocation's state. ``verify`` restores the durations if no other allocation uses the devices."""
        self._tenants.pop(record.id, None)

    def vacate(self, record: AllocationRecord) -> None:
        del record
        self._durations.keep_only(self._used)

    def recover(self, held: Sequence[AllocationRecord]) -> None:
        self._tenants = {record.id: _cards(record) for record in held}

    def verify(self, held: Sequence[AllocationRecord]) -> list[str]:
        del held
        self._durations.keep_only(self._used)
        ask = time.monotonic() >= self._due_s
        if ask:
            self._due_s = time.monotonic() + CHECK_EVERY_S
        return self._durations.check(self._used, ask=ask)

    def stop(self) -> None:
        """Restore the time-slice durations of devices without allocations."""
        self._durations.keep_only(self._used)

    def _used(self) -> set[DeviceUuid]:
        return {uuid for cards in list(self._tenants.values()) for uuid in cards}

    def _wanted(self, uuid: DeviceUuid) -> str:
        return next((d.interval for d in self._tools.inventory.devices() if d.uuid == uuid), "")

    def _uncapped_beside(self, uuid: DeviceUuid) -> bool:
        return any(cards.get(uuid) == 0 for cards in list(self._tenants.values()))


def _cards(record: AllocationRecord) -> dict[DeviceUuid, int]:
    return {part.device: part.memory_mib for part in record.placement.slices}


def open_mode(tools: NodeTools) -> TimeSliceExecutor:
    """Return the executor of mode timeslice."""
    return TimeSliceExecutor(tools)
