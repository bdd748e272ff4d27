"""What the agent shows of its node: frozen values, taken at one moment, that nobody can change the node through."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from calabash.adapters.host.processes import Process
from calabash.model.allocation import AllocationRecord
from calabash.model.device import Device, DeviceReading, DeviceUuid, NodeName
from calabash.model.request import AllocationId, ModeName
from calabash.node.processes.unmanaged import Stranger
from calabash.sharing.foreign import with_unmanaged_memory
from calabash.sharing.protocol import HeldSlice


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceUse:
    """What one slice uses now; ``core_used_percent`` over the last second, of the whole device; ``idle_s``: for how long it has
    had no GPU time, 0 where nobody would see it."""

    memory_used_mib: int = 0
    core_used_percent: float = 0.0
    denied: int = 0
    throttled_s: float = 0.0
    idle_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSnapshot:
    """A device with its health, the mode it is in (None when idle), and who is on it.

    Args:
        held: the slices on it, in the order in which they were granted; ``allocations`` are whose they are.
        reading: None when it does not answer.
        cause: why it is not healthy; "" when it is.
        orphans: allocations in use that the journal does not know; it takes no new work before they are gone.
        strangers: processes on it that have no slice of it; what they hold is not granted to anybody.
        drained: it takes no new work as long as there are strangers.
    """

    device: Device
    mode: ModeName | None
    held: tuple[HeldSlice, ...]
    allocations: tuple[AllocationId, ...] = ()
    reading: DeviceReading | None = None
    cause: str = ""
    orphans: tuple[AllocationId, ...] = ()
    strangers: tuple[Stranger, ...] = ()
    drained: bool = False

    @property
    def takes_work(self) -> bool:
        """Whether anything new may be granted on it, room or not."""
        return not self.orphans and not (self.strangers and self.drained)

    @property
    def foreign_mib(self) -> int:
        """Memory that its strangers hold; at least 1 when there are any. Those on a part keep that part, and nothing else."""
        return sum(max(1, stranger.used_mib) for stranger in self.strangers if not stranger.part)

    @property
    def counted(self) -> tuple[ModeName | None, tuple[HeldSlice, ...]]:
        """Mode and slices beside which anything new must fit, what strangers hold included."""
        return self.beside()

    def beside(self, but: Collection[AllocationId] = ()) -> tuple[ModeName | None, tuple[HeldSlice, ...]]:
        """The same as if the allocations of ``but`` held nothing."""
        held = self.held
        if but:
            held = tuple(h for h, name in zip(self.held, self.allocations, strict=True) if name not in but)
        return with_unmanaged_memory(self.device.uuid, self.mode if held else None, held, self.foreign_mib)


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationSnapshot:
    """A held allocation: what it uses of each slice, its live processes, and whether its end was asked for."""

    record: AllocationRecord
    use: tuple[SliceUse, ...]
    processes: tuple[Process, ...] = ()
    pids: tuple[int, ...] = ()
    ending: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSnapshot:
    """The node at one moment.

    Args:
        allocations: everything held, oldest first.
        membership: how the pool knows who belongs to an allocation: ``kernel`` or ``lease``.
        slots: where limits and usage lie: ``tmpfs`` or ``files``.
    """

    node: NodeName
    devices: tuple[DeviceSnapshot, ...]
    allocations: tuple[AllocationSnapshot, ...]
    membership: str
    slots: str

    def device(self, uuid: DeviceUuid) -> DeviceSnapshot | None:
        """One of its devices."""
        return next((d for d in self.devices if d.device.uuid == uuid), None)
