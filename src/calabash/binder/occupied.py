"""Memory of a cluster's devices that nobody was given and somebody holds, as the scheduler counts it."""

from __future__ import annotations

from calabash.binder.kinds import NodeDevice
from calabash.model.device import NodeName
from calabash.sched import NodePlacement, Scheduler, Shape
from calabash.sharing.foreign import FOREIGN_MODE


class ForeignInCluster:
    """What strangers hold is not granted; see ``beside.ForeignMemory`` for one machine."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._held: dict[tuple[NodeName, int], tuple[Shape, NodePlacement]] = {}

    def set(self, node: NodeName, number: int, found: NodeDevice) -> None:
        """What there is now on one device."""
        state = self._scheduler.state
        before = self._held.pop((node, number), None)
        if before is not None:
            state.vacate(*before)
            state.freed()
        if not found.foreign_mib:
            return
        row = state.cluster.row(node)
        free_mib = int(state.cluster.gpu_free_mib[row, number])
        if free_mib > 0:
            shape = Shape(gpu_count=1, gpu_memory_mib=min(free_mib, found.foreign_mib), mode=FOREIGN_MODE)
            placement = NodePlacement(node=row, devices=(number,))
            if state.occupy(shape, placement):  # else it is in another mode: full, or not divided by memory
                self._held[node, number] = (shape, placement)

    def leave(self, node: NodeName) -> None:
        """The node is gone."""
        for key in [k for k in self._held if k[0] == node]:
            self._scheduler.state.vacate(*self._held.pop(key))
