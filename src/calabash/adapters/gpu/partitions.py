"""Interface of drivers whose cards can be partitioned (NVIDIA: MIG).

It is an optional part of ``protocol``: a driver that supports it has an attribute ``partitioning``, which
``partitioning_of`` returns. The profiles of a card and their placements are the driver's (``Device.mig``); the current
instances are a ``CardLayout``. As in ``protocol``, every method asks the driver, raises ``CalabashError`` if it
refuses, and returns within a bounded time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from calabash.adapters.gpu.protocol import GpuDriver
from calabash.model.device import DeviceProcess, DeviceUuid


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeInstance:
    """MIG device that programs see: some compute slices of a GPU instance, and all memory of the GPU instance.

    ``compute`` is the number of its compute slices, ``start`` the first one within the GPU instance.
    """

    id: int
    uuid: DeviceUuid
    compute: int
    start: int
    processes: tuple[DeviceProcess, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuInstance:
    """Partition of a card with its own memory, engines and compute slices; ``start`` is its first memory slice."""

    id: int
    profile: str
    start: int
    parts: tuple[ComputeInstance, ...] = ()

    @property
    def in_use(self) -> bool:
        """True if any of its compute instances has processes."""
        return any(part.processes for part in self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class CardLayout:
    """Current partitions of a card; ``enabled`` is True if the card is in MIG mode."""

    enabled: bool
    instances: tuple[GpuInstance, ...] = ()

    def at(self, profile: str, start: int) -> GpuInstance | None:
        """Return the instance of this profile that begins at this memory slice; None if there is none."""
        return next((i for i in self.instances if (i.profile, i.start) == (profile, start)), None)

    def part(self, uuid: DeviceUuid) -> tuple[GpuInstance, ComputeInstance] | None:
        """Return the compute instance with this UUID and its GPU instance; None if there is none."""
        return next(((i, part) for i in self.instances for part in i.parts if part.uuid == uuid), None)

    @property
    def uuids(self) -> frozenset[DeviceUuid]:
        """UUIDs of all compute instances."""
        return frozenset(part.uuid for instance in self.instances for part in instance.parts)


class Partitioning(Protocol):
    """Partitioning of the cards of one driver."""

    def layout(self, uuid: DeviceUuid) -> CardLayout:
        """Return the current instances of the card, with the processes that this process can see."""
        ...

    def multiprocessors(self, uuid: DeviceUuid, part: DeviceUuid) -> int:
        """Return the number of multiprocessors of a compute instance; 0 if the driver does not report it.

        Args:
            uuid: UUID of the card.
            part: UUID of the compute instance.
        """
        ...

    def enable(self, uuid: DeviceUuid, enabled: bool) -> None:
        """Turn MIG mode of the card on or off.

        Raises CalabashError(CONFLICT) while the card is in use; no change is left pending then.
        """
        ...

    def create(self, uuid: DeviceUuid, profile: str, start: int) -> GpuInstance:
        """Create a GPU instance without compute instances.

        Raises CalabashError: NO_CAPACITY if its slices are taken, BAD_REQUEST if the placement is not legal.
        """
        ...

    def create_part(self, uuid: DeviceUuid, instance: int, compute: int, start: int = -1) -> ComputeInstance:
        """Create a compute instance of ``compute`` slices in a GPU instance.

        Args:
            instance: number of the GPU instance.
            start: first compute slice, if the driver supports a choice; -1 lets the driver choose.

        Raises CalabashError(NO_CAPACITY) if too few slices are free, or those at ``start`` are taken.
        """
        ...

    def destroy_part(self, uuid: DeviceUuid, instance: int, part: int) -> None:
        """Destroy a compute instance.

        Args:
            uuid: UUID of the card.
            instance: number of the GPU instance.
            part: number of the compute instance within it.

        Raises CalabashError: CONFLICT while a process uses the compute instance, NOT_FOUND if it does not exist.
        """
        ...

    def destroy(self, uuid: DeviceUuid, instance: int) -> None:
        """Destroy a GPU instance.

        Raises CalabashError: CONFLICT while it has compute instances, NOT_FOUND if it does not exist.
        """
        ...


@runtime_checkable
class PartitioningDriver(Protocol):
    """Driver that supports partitioning."""

    @property
    def partitioning(self) -> Partitioning:
        """Partitioning of the driver's cards."""
        ...


def partitioning_of(driver: GpuDriver) -> Partitioning | None:
    """Return the partitioning of the driver; None if the driver does not support any."""
    return driver.partitioning if isinstance(driver, PartitioningDriver) else None
