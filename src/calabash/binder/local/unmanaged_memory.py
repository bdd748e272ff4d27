"""Unmanaged memory of one machine's devices: memory that processes without an allocation use.

The scheduler counts it as occupied, so that it is not granted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from calabash.model.device import DeviceUuid
from calabash.model.messages import Text
from calabash.sched import NodePlacement, Scheduler, Shape
from calabash.sharing.foreign import FOREIGN_MODE


@dataclass(frozen=True, slots=True, kw_only=True)
class UnmanagedDeviceMemory:
    """Unmanaged memory of a device.

    Args:
        memory_mib: memory to count as occupied; 0 if unmanaged processes use only partitions, because these processes
            block their partitions and no other memory of the device.
        remedy: text that tells users how to free the memory.
    """

    memory_mib: int
    remedy: Text = ""


class UnmanagedMemory:
    """Prevents that unmanaged memory is granted, and that a device with unmanaged processes is granted exclusively.

    Args:
        scheduler: scheduler with one node, which is this host.
        number: index of each device in this node.
    """

    def __init__(self, scheduler: Scheduler, number: Mapping[DeviceUuid, int]) -> None:
        self._scheduler = scheduler
        self._number = number
        self._reported: dict[DeviceUuid, UnmanagedDeviceMemory] = {}
        self._occupied: dict[DeviceUuid, Shape] = {}

    def set(self, found: Mapping[DeviceUuid, UnmanagedDeviceMemory]) -> None:
        """Replace the unmanaged memory of all devices."""
        state, self._reported = self._scheduler.state, dict(found)
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
        """Return True if the unmanaged memory of all devices is counted as occupied.

        On a device in a mode that does not divide memory, it cannot be counted before the device leaves that mode.
        """
        return self._occupied.keys() == {uuid for uuid, foreign in self._reported.items() if foreign.memory_mib}

    def memory_mib(self, uuid: DeviceUuid) -> int:
        found = self._reported.get(uuid)
        return found.memory_mib if found else 0

    def remedies(self) -> tuple[Text, ...]:
        """Return the texts that tell users how to free the unmanaged memory, one for each device that has a text."""
        return tuple(f.remedy for f in self._reported.values() if f.remedy)

    def _place(self, uuid: DeviceUuid) -> NodePlacement:
        return NodePlacement(node=0, devices=(self._number[uuid],))
