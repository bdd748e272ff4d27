"""Unmanaged memory of a cluster's devices, which the scheduler counts as occupied."""

from __future__ import annotations

from calabash.binder.cluster.device_kinds import NodeDevice
from calabash.model.device import NodeName
from calabash.sched import NodePlacement, Scheduler, Shape
from calabash.sharing.foreign import FOREIGN_MODE

Spot = tuple[NodeName, int]  # node and device index


class ClusterUnmanagedMemory:
    """Prevents that memory which unmanaged processes use is granted; see ``local.unmanaged_memory`` for one machine.

    The scheduler cannot count memory that it has already given to slices. Such memory is counted when these slices end.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._found: dict[Spot, int] = {}  # MiB
        self._held: dict[Spot, tuple[Shape, NodePlacement]] = {}
        self._short: set[Spot] = set()  # where less is counted than was reported

    def set(self, node: NodeName, number: int, found: NodeDevice) -> None:
        """Set the unmanaged memory of one device; ``number`` is the index of the device in its node."""
        spot = (node, number)
        before = self._held.pop(spot, None)
        if before is not None:
            self._scheduler.state.vacate(*before)
            self._scheduler.state.freed()
        self._found[spot] = min(found.foreign_mib, found.device.memory_mib)
        self._count(spot)

    def catch_up(self) -> None:
        """Count unmanaged memory that slices held when it was reported, as far as these slices have ended.

        Must be called before each decision.
        """
        for spot in list(self._short):
            self._count(spot)

    def remove_node(self, node: NodeName) -> None:
        """Remove the unmanaged memory of all devices of a node."""
        for spot in [k for k in self._found if k[0] == node]:
            del self._found[spot]
            self._short.discard(spot)
            held = self._held.pop(spot, None)
            if held is not None:
                self._scheduler.state.vacate(*held)

    def _count(self, spot: Spot) -> None:
        state, held = self._scheduler.state, self._held.pop(spot, None)
        row, number = state.cluster.row(spot[0]), spot[1]
        if held is not None:
            state.vacate(*held)
        room_mib = min(int(state.cluster.gpu_free_mib[row, number]), self._found[spot])
        if room_mib > 0:
            shape = Shape(gpu_count=1, gpu_memory_mib=room_mib, gpu_slices=1, mode=FOREIGN_MODE)
            placement = NodePlacement(node=row, devices=(number,))
            if state.occupy(shape, placement):  # else it is in another mode: full, or not divided by memory
                self._held[spot] = (shape, placement)
        counted_mib = self._held[spot][0].gpu_memory_mib if spot in self._held else 0
        if counted_mib < self._found[spot]:
            self._short.add(spot)
        else:
            self._short.discard(spot)
