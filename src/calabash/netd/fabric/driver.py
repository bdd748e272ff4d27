"""What every fabric can be asked: ``FabricIsolation``, of which there is one driver for each plane."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from calabash.model.errors import CalabashError, Reason
from calabash.model.fabric import FabricPlane
from calabash.net.fabric_partitions import FabricPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricView:
    """What a fabric's manager said: the partitions that are ours, and addresses that a foreign one lets talk to strangers."""

    partitions: tuple[FabricPartition, ...] = ()
    exposed: frozenset[str] = frozenset()


class FabricIsolation(Protocol):
    """Partitions of one plane. A caller allocates, attaches, verifies by ``seen``, and later releases and drops.

    Every order may be repeated and raises CalabashError when it was not taken; that it was taken proves nothing, only what
    is seen afterwards does. Of partitions that are not ours nothing is changed.
    """

    @property
    def plane(self) -> FabricPlane: ...

    @property
    def divides(self) -> bool:
        """Whether it has partitions at all."""
        ...

    def seen(self) -> FabricView:
        """How it stands now, as its manager tells."""
        ...

    def allocate(self, tenant: str, seen: FabricView) -> int:
        """The number of the tenant's partition, which is made, empty, where ``seen`` has none."""
        ...

    def attach(self, number: int, addresses: Collection[str]) -> None:
        """Have these in the partition."""
        ...

    def release(self, number: int, addresses: Collection[str]) -> None:
        """Have these out of it; those that are not in it are no error."""
        ...

    def drop(self, number: int) -> None:
        """Remove an empty partition; none is no error."""
        ...


class NullFabric:
    """A plane that nothing divides: for a fabric that is one tenant's as a whole, or is not to be touched."""

    def __init__(self, plane: FabricPlane) -> None:
        self._plane = plane

    @property
    def plane(self) -> FabricPlane:
        return self._plane

    @property
    def divides(self) -> bool:
        return False

    def seen(self) -> FabricView:
        return FabricView()

    def allocate(self, tenant: str, seen: FabricView) -> int:
        raise self._refusal()

    def attach(self, number: int, addresses: Collection[str]) -> None:
        raise self._refusal()

    def release(self, number: int, addresses: Collection[str]) -> None:
        """Nothing is in anything."""

    def drop(self, number: int) -> None:
        """There is nothing to remove."""

    def _refusal(self) -> CalabashError:
        return CalabashError(f"nothing divides {self._plane} here", reason=Reason.UNSUPPORTED)


def partition_of(numbers: FabricView, tenant: str) -> int:
    """The smallest number that the tenant has, 0 none."""
    return min((p.number for p in numbers.partitions if p.tenant == tenant), default=0)
