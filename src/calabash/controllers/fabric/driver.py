"""Interface of fabric drivers, ``FabricIsolation``, and the driver of a plane without partitions."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from calabash.model.errors import CalabashError, Reason
from calabash.model.fabric import FabricPlane
from calabash.net.fabric_partitions import FabricPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricView:
    """Observed state of a fabric.

    Args:
        partitions: partitions managed by Calabash.
        exposed: endpoint addresses that a partition of other software connects to all endpoints of the fabric.
    """

    partitions: tuple[FabricPartition, ...] = ()
    exposed: frozenset[str] = frozenset()


class FabricIsolation(Protocol):
    """Driver of one plane: reads and changes the partitions of a fabric through its manager.

    A caller allocates a partition, attaches endpoints and verifies this with ``observe``; later it releases the
    endpoints and drops the partition. Every call may be repeated, and raises CalabashError if the manager refuses it. A
    manager may accept a call without effect, so only ``observe`` shows the actual state. Partitions of other software
    are never changed.
    """

    @property
    def plane(self) -> FabricPlane: ...

    @property
    def divides(self) -> bool:
        """True if the plane has partitions; if not, only ``observe`` may be called."""
        ...

    def observe(self) -> FabricView:
        """Return the current state reported by the fabric manager."""
        ...

    def allocate(self, tenant: str, seen: FabricView) -> int:
        """Return the number of the tenant's partition; create an empty one if the observed state ``seen`` has none."""
        ...

    def attach(self, number: int, addresses: Collection[str]) -> None:
        """Add addresses to the partition."""
        ...

    def release(self, number: int, addresses: Collection[str]) -> None:
        """Remove addresses from the partition; ignores addresses that are not in it."""
        ...

    def drop(self, number: int) -> None:
        """Delete an empty partition; ignores a missing one."""
        ...


class NullFabric:
    """Driver of a plane without partitions, whose fabric has a single tenant or must not be changed."""

    def __init__(self, plane: FabricPlane) -> None:
        self._plane = plane

    @property
    def plane(self) -> FabricPlane:
        return self._plane

    @property
    def divides(self) -> bool:
        return False

    def observe(self) -> FabricView:
        return FabricView()

    def allocate(self, tenant: str, seen: FabricView) -> int:
        raise self._refusal()

    def attach(self, number: int, addresses: Collection[str]) -> None:
        raise self._refusal()

    def release(self, number: int, addresses: Collection[str]) -> None:
        """Do nothing."""

    def drop(self, number: int) -> None:
        """Do nothing."""

    def _refusal(self) -> CalabashError:
        return CalabashError(f"{self._plane} has no partitions here", reason=Reason.UNSUPPORTED)


def partition_of(numbers: FabricView, tenant: str) -> int:
    """Return the smallest partition number of the tenant, or 0."""
    return min((p.number for p in numbers.partitions if p.tenant == tenant), default=0)
