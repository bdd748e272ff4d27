"""Memory that processes without a slice hold, as the scheduler of one machine counts it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from calabash.model.device import DeviceUuid
from calabash.sched import NodePlacement, Scheduler, Shape
from calabash.sharing.foreign import FOREIGN_MODE


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreign:
    """Memory of a device that processes without a slice hold, 0 when they are on parts of it that are theirs alone;
    ``remedy`` tells people how to get it back."""

    memory_mib: int
    remedy: str = ""


class ForeignMemory:
    """What nobody was given and somebody holds: it is not granted, and its device is granted to nobody alone.

    Args:
        number: the place of each device in the scheduler's one node.
    """

    def __init__(self, scheduler: Scheduler, number: Mapping[DeviceUuid, int]) -> None:
        self._scheduler = scheduler
        self._number = number
        self._found: dict[DeviceUuid, Foreign] = {}
        self._occupied: dict[DeviceUuid, Shape] = {}

    def set(self, found: Mapping[DeviceUuid, Foreign]) -> None:
        """What there is now."""
        state, self._found = self._scheduler.state, dict(found)
        for uuid, shape in list(self._occupied.items()):
            state.vacate(shape, self._place(uuid))
            del self._occupied[uuid]
        for uuid, foreign in found.items():
            if not foreign.memory_mib:
                continue
            free_mib = int(state.cluster.gpu_free_mib[0, self._number[uuid]])
            if free_mib > 0:
                shape = Shape(
                    gpu_count=1, gpu_memory_mib=min(free_mib, foreign.memory_mib), gpu_slices=1, mode=FOREIGN_MODE
                )
                if state.occupy(shape, self._place(uuid)):  # else it is in another mode: full, or not divided by memory
                    self._occupied[uuid] = shape
        state.freed()

    def is_counted(self) -> bool:
        """Whether all of it is; what came to a device in another mode is counted when that mode has ended."""
        return self._occupied.keys() == {uuid for uuid, foreign in self._found.items() if foreign.memory_mib}

    def memory_mib(self, uuid: DeviceUuid) -> int:
        found = self._found.get(uuid)
        return found.memory_mib if found else 0

    def remedies(self) -> tuple[str, ...]:
        """What would give it back."""
        return tuple(f.remedy for f in self._found.values() if f.remedy)

    def _place(self, uuid: DeviceUuid) -> NodePlacement:
        return NodePlacement(node=0, devices=(self._number[uuid],))
