"""Immutable snapshots of a node: devices, allocations and their use."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from calabash.adapters.host.processes import Process
from calabash.model.allocation import AllocationRecord
from calabash.model.device import Device, DeviceReading, DeviceUuid, NodeName
from calabash.model.messages import Text
from calabash.model.request import AllocationId, ModeName
from calabash.node.processes.unmanaged import UnmanagedProcess
from calabash.sharing.foreign import with_unmanaged_memory
from calabash.sharing.protocol import HeldSlice


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceUse:
    """Present use of one slice.

    Args:
        core_used_percent: GPU time of the last second, in percent of the whole device.
        denied: number of memory requests that were refused because of the limit.
        throttled_s: time for which launches waited because of the compute share.
        idle_s: time since the last use of GPU time; 0 if the GPU time of the slice is not measured.
    """

    memory_used_mib: int = 0
    core_used_percent: float = 0.0
    denied: int = 0
    throttled_s: float = 0.0
    idle_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSnapshot:
    """A device with its health, its sharing mode (None if idle), and the slices held of it.

    Args:
        held: held slices in the order in which they were granted.
        allocations: the allocation of each slice in ``held``.
        reading: last reading; None if the device does not answer.
        cause: reason why the device is not healthy; "" if it is.
        orphans: allocations in use that the journal does not know; the device takes no new work until they have ended.
        unmanaged: processes on the device that have no slice of it; their memory is not granted.
        drained: the policy of the node forbids new work on a device while it has unmanaged processes.
    """

    device: Device
    mode: ModeName | None
    held: tuple[HeldSlice, ...]
    allocations: tuple[AllocationId, ...] = ()
    reading: DeviceReading | None = None
    cause: Text = ""
    orphans: tuple[AllocationId, ...] = ()
    unmanaged: tuple[UnmanagedProcess, ...] = ()
    drained: bool = False

    @property
    def takes_work(self) -> bool:
        """Return True if new allocations may be granted on the device, regardless of free capacity."""
        return not self.orphans and not (self.unmanaged and self.drained)

    @property
    def foreign_mib(self) -> int:
        """Memory of unmanaged processes in MiB, at least 1 for each process.

        Unmanaged processes on a partition are not counted: they block that partition only.
        """
        return sum(max(1, found.used_mib) for found in self.unmanaged if not found.part)

    def beside(self, but: Collection[AllocationId] = ()) -> tuple[ModeName | None, tuple[HeldSlice, ...]]:
        """Return the mode and the held slices that limit a new slice, except the slices of the allocations in ``but``.

        The memory of unmanaged processes is included as that of held slices.
        """
        held = self.held
        if but:
            held = tuple(h for h, name in zip(self.held, self.allocations, strict=True) if name not in but)
        return with_unmanaged_memory(self.device.uuid, self.mode if held else None, held, self.foreign_mib)


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationSnapshot:
    """A held allocation: use of each slice, live processes, and True in ``ending`` if its end was requested.

    ``processes`` and ``pids`` are empty unless the snapshot was requested with them.
    """

    record: AllocationRecord
    use: tuple[SliceUse, ...]
    processes: tuple[Process, ...] = ()
    pids: tuple[int, ...] = ()
    ending: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSnapshot:
    """State of the node at one moment.

    Args:
        allocations: held allocations, oldest first.
        membership: form of membership: ``kernel`` or ``lease``.
        slots: storage of the slots: ``tmpfs`` or ``files``.
    """

    node: NodeName
    devices: tuple[DeviceSnapshot, ...]
    allocations: tuple[AllocationSnapshot, ...]
    membership: str
    slots: str

    def device(self, uuid: DeviceUuid) -> DeviceSnapshot | None:
        """Return the device with a UUID; None if there is none."""
        return next((d for d in self.devices if d.device.uuid == uuid), None)
