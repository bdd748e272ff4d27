"""Time-slicing on this node: tenants see the cards of their slice; who asked for memory is held to it by the shim, and
turns are as long as the card's operator wants them, where its driver can do that."""

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
from calabash.node.modes.timeslice.durations import TurnLengths
from calabash.node.processes.reaper import Reaper
from calabash.node.slots.content import SlotDevice
from calabash.node.slots.native import PageLibrary
from calabash.node.slots.open_pages import Pages
from calabash.sharing import timeslice

CHECK_EVERY_S = 30.0  # whether somebody else has changed the length of turns, which nobody should


class TimeSliceExecutor(ViewOnly):
    """A slot that narrows the view, and a cap where one was asked for."""

    name = timeslice.MODE.name

    def __init__(self, tools: NodeTools) -> None:
        super().__init__(tools)
        intervals = Intervals(tools.environment, tools.driver_files)
        self._turns = TurnLengths(tools.home / "timeslices.json", intervals, wanted=self._wanted)
        self._tenants: dict[AllocationId, dict[DeviceUuid, int]] = {}  # cards, and the MiB granted on each
        self._due_s = 0.0

    def prepare(self, record: AllocationRecord) -> tuple[SlotDevice, ...]:
        capped = any(part.memory_mib for part in record.placement.slices)
        if capped and not self._tools.library.is_file():
            raise CalabashError(
                f"{self._tools.library.name} has not been built, so memory cannot be capped in mode {self.name}",
                reason=Reason.BAD_FILE,
                hint="build it with: make native, or ask for no memory",
            )
        return tuple(
            SlotDevice(uuid=part.device, memory_limit_bytes=part.memory_mib * MIB) for part in record.placement.slices
        )

    def provide(self, record: AllocationRecord) -> tuple[SlotDevice, ...]:
        """The first tenant of a card sets the length of its turns; a driver that cannot do it is no reason to refuse."""
        devices = self.prepare(record)
        self._tenants[record.id] = _cards(record)
        self._turns.apply(frozenset(self._tenants[record.id]))
        return devices

    def enter(self, record: AllocationRecord, pages: Pages) -> None:
        if any(part.memory_mib for part in record.placement.slices):
            Reaper(self._tools.inventory, PageLibrary(), self._tools.contexts).publish_context(pages.limits)

    def warnings(self, record: AllocationRecord) -> tuple[str, ...]:
        found = []
        for part in record.placement.slices:
            wrong = self._turns.wrong(part.device)
            if wrong:
                found.append(f"turns are as long as the driver makes them: {wrong}")
            if part.memory_mib and self._uncapped_beside(part.device):
                found.append(
                    f"{format_mib(part.memory_mib)} is a cap and no promise: others on the card have none and may take"
                    " what is there"
                )
        return tuple(found)

    def leave(self, record: AllocationRecord) -> None:
        """TurnLengths are put back at the next look, when nobody else has come."""
        self._tenants.pop(record.id, None)

    def vacate(self, record: AllocationRecord) -> None:
        del record
        self._turns.keep_only(self._used)

    def recover(self, held: Sequence[AllocationRecord]) -> None:
        self._tenants = {record.id: _cards(record) for record in held}

    def verify(self, held: Sequence[AllocationRecord]) -> list[str]:
        del held
        self._turns.keep_only(self._used)
        ask = time.monotonic() >= self._due_s
        if ask:
            self._due_s = time.monotonic() + CHECK_EVERY_S
        return self._turns.check(self._used, ask=ask)

    def stop(self) -> None:
        """Cards without tenants are left as they were found."""
        self._turns.keep_only(self._used)

    def _used(self) -> set[DeviceUuid]:
        return {uuid for cards in list(self._tenants.values()) for uuid in cards}

    def _wanted(self, uuid: DeviceUuid) -> str:
        return next((d.interval for d in self._tools.inventory.devices() if d.uuid == uuid), "")

    def _uncapped_beside(self, uuid: DeviceUuid) -> bool:
        return any(cards.get(uuid) == 0 for cards in list(self._tenants.values()))


def _cards(record: AllocationRecord) -> dict[DeviceUuid, int]:
    return {part.device: part.memory_mib for part in record.placement.slices}


def open_mode(tools: NodeTools) -> TimeSliceExecutor:
    """The executor of this mode."""
    return TimeSliceExecutor(tools)
