"""What is asked of a driver whose cards can be cut into parts of their own (NVIDIA: MIG).

This is the optional half of ``protocol``: a driver that can do it has an attribute ``partitioning``, and
``partitioning_of`` finds it. Which profiles a card has and where they may stand is always the driver's own word
(``Device.mig``); what stands on it now is a ``CardLayout``. As in ``protocol`` every method answers from the driver, raises
``CalabashError`` when it refuses, and returns within a bounded time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from calabash.adapters.gpu.protocol import GpuDriver
from calabash.model.device import DeviceProcess, DeviceUuid


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeInstance:
    """A device that programs see: some compute slices of a GPU instance, and all of its memory."""

    id: int
    uuid: DeviceUuid
    compute: int
    start: int
    processes: tuple[DeviceProcess, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuInstance:
    """A part of a card with memory, engines and compute slices of its own; ``start`` is its first memory slice."""

    id: int
    profile: str
    start: int
    parts: tuple[ComputeInstance, ...] = ()

    @property
    def in_use(self) -> bool:
        """Whether processes are on any of its parts."""
        return any(part.processes for part in self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class CardLayout:
    """How a card is cut now; ``enabled``: whether it can be given out in parts only."""

    enabled: bool
    instances: tuple[GpuInstance, ...] = ()

    def at(self, profile: str, start: int) -> GpuInstance | None:
        """The instance of this profile that begins at this memory slice."""
        return next((i for i in self.instances if (i.profile, i.start) == (profile, start)), None)

    def part(self, uuid: DeviceUuid) -> tuple[GpuInstance, ComputeInstance] | None:
        """The part of this name, and the instance that it is of."""
        return next(((i, part) for i in self.instances for part in i.parts if part.uuid == uuid), None)

    @property
    def uuids(self) -> frozenset[DeviceUuid]:
        """The names of all parts."""
        return frozenset(part.uuid for instance in self.instances for part in instance.parts)


class Partitioning(Protocol):
    """Cutting the cards of one driver."""

    def layout(self, uuid: DeviceUuid) -> CardLayout:
        """What stands on the card now, and the processes on each part that this process can see."""
        ...

    def multiprocessors(self, uuid: DeviceUuid, part: DeviceUuid) -> int:
        """How many a part of the card has; 0 where it does not tell."""
        ...

    def enable(self, uuid: DeviceUuid, enabled: bool) -> None:
        """Lets the card be cut, or be one card again. Raises CONFLICT while anything is on it; nothing is pending then."""
        ...

    def create(self, uuid: DeviceUuid, profile: str, start: int) -> GpuInstance:
        """A new instance, without parts yet. Raises NO_CAPACITY where its place is taken, BAD_REQUEST for no legal place."""
        ...

    def create_part(self, uuid: DeviceUuid, instance: int, compute: int, start: int = -1) -> ComputeInstance:
        """A part of an instance, of so many compute slices, from ``start`` on where the driver lets that be chosen (-1: where
        it will). Raises NO_CAPACITY where fewer are free, or others are there."""
        ...

    def destroy_part(self, uuid: DeviceUuid, instance: int, part: int) -> None:
        """Raises CONFLICT while a process is on it, NOT_FOUND when it is gone."""
        ...

    def destroy(self, uuid: DeviceUuid, instance: int) -> None:
        """Raises CONFLICT while it has parts, NOT_FOUND when it is gone."""
        ...


@runtime_checkable
class PartitioningDriver(Protocol):
    """A driver with the optional half."""

    @property
    def partitioning(self) -> Partitioning:
        """The other half."""
        ...


def partitioning_of(driver: GpuDriver) -> Partitioning | None:
    """How a driver cuts its cards; None for one that cannot."""
    return driver.partitioning if isinstance(driver, PartitioningDriver) else None
