"""Immutable collections of network objects: ``VpcObjects`` of one VPC, ``NetworkObjects`` of all VPCs.

A change returns a new collection. It copies only the mapping of the objects of one kind in one VPC; all other mappings
are shared with the old collection. The collections do not check changes; ``Networks``
(``calabash.net.store.networks``) does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Self, TypeVar, cast

from calabash.model.network import KINDS, NetworkKind, NetworkObject, Port, Uplink, kind_of, vpc_of

T = TypeVar("T", bound=NetworkObject)
SHARED = ""  # key of the objects that belong to no VPC: uplinks


@dataclass(frozen=True, slots=True)
class VpcObjects:
    """Objects of one VPC.

    Args:
        kinds: objects by kind and by full name; a kind without objects is absent.
        addresses: for each address of a port, the name of the port. The key is the address as an integer: IPv4
            below 2^32, else IPv6.
        macs: for each MAC of a port, the name of the port.
    """

    kinds: Mapping[NetworkKind, Mapping[str, NetworkObject]] = field(default_factory=dict)
    addresses: Mapping[int, str] = field(default_factory=dict)
    macs: Mapping[str, str] = field(default_factory=dict)

    def all(self, object_type: type[T]) -> Mapping[str, T]:
        """Return all objects of one class, by name."""
        return cast(Mapping[str, T], self.kinds.get(KINDS[object_type], {}))

    def __iter__(self) -> Iterator[NetworkObject]:
        for kind in NetworkKind:
            yield from self.kinds.get(kind, {}).values()

    def __len__(self) -> int:
        return sum(map(len, self.kinds.values()))

    def replaced(self, kind: NetworkKind, name: str, item: NetworkObject | None) -> VpcObjects:
        """Return a collection in which the object ``name`` is ``item``, or is removed if ``item`` is None."""
        objects = dict(self.kinds.get(kind, {}))
        before = objects.pop(name, None) if item is None else objects.get(name)
        if item is not None:
            objects[name] = item
        kinds = dict(self.kinds)
        kinds[kind] = objects
        if not objects:
            del kinds[kind]
        if kind is not NetworkKind.PORT:
            return VpcObjects(kinds, self.addresses, self.macs)
        addresses, macs = dict(self.addresses), dict(self.macs)
        if isinstance(before, Port):
            _unindex(before, addresses, macs)
        if isinstance(item, Port):
            _index(item, addresses, macs)
        return VpcObjects(kinds, addresses, macs)


EMPTY = VpcObjects()


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkObjects:
    """Objects of all VPCs. ``revision`` grows by one with every change."""

    vpcs: Mapping[str, VpcObjects] = field(default_factory=dict)
    revision: int = 0

    @classmethod
    def from_objects(cls, items: Iterable[NetworkObject], revision: int) -> Self:
        """Build a collection of objects that were checked before: from a database or from a snapshot of another process."""
        kinds: dict[str, dict[NetworkKind, dict[str, NetworkObject]]] = {}
        for item in items:
            kind = kind_of(item)
            vpc = SHARED if kind is NetworkKind.UPLINK else vpc_of(item.name)
            kinds.setdefault(vpc, {}).setdefault(kind, {})[item.name] = item
        vpcs: dict[str, VpcObjects] = {}
        for vpc, objects in kinds.items():
            addresses: dict[int, str] = {}
            macs: dict[str, str] = {}
            for port in cast(Iterable[Port], objects.get(NetworkKind.PORT, {}).values()):
                _index(port, addresses, macs)
            vpcs[vpc] = VpcObjects(objects, addresses, macs)
        return cls(vpcs=vpcs, revision=revision)

    def get(self, kind: NetworkKind, name: str) -> NetworkObject | None:
        return self._objects_of(kind, name).kinds.get(kind, {}).get(name)

    def find(self, object_type: type[T], name: str) -> T | None:
        """Return the object of that class and name, or None."""
        return cast(T | None, self.get(KINDS[object_type], name))

    def items(self, kind: NetworkKind | None = None) -> Iterator[NetworkObject]:
        """Yield all objects, or those of one kind: by VPC in order of creation, then by kind, then in order of creation."""
        for objects in self.vpcs.values():
            yield from objects if kind is None else objects.kinds.get(kind, {}).values()

    def all(self, object_type: type[T]) -> Iterator[T]:
        """Yield all objects of one class, in the order of ``items``."""
        return cast(Iterator[T], self.items(KINDS[object_type]))

    def of_vpc(self, vpc: str) -> VpcObjects:
        """Return the objects of a VPC including the VPC itself; empty if the VPC does not exist."""
        return self.vpcs.get(vpc, EMPTY)

    def uplinks(self) -> Mapping[str, Uplink]:
        return self.of_vpc(SHARED).all(Uplink)

    def changes_since(self, before: NetworkObjects) -> tuple[tuple[NetworkObject, ...], tuple[NetworkObject, ...]]:
        """Return the objects that are new or different, and those that were removed, compared with ``before``.

        The cost depends only on the size of the VPCs that changed.
        """
        changed: list[NetworkObject] = []
        removed: list[NetworkObject] = []
        for vpc in {**before.vpcs, **self.vpcs}:
            old, new = before.of_vpc(vpc), self.of_vpc(vpc)
            for kind in NetworkKind if old is not new else ():
                was, now = old.kinds.get(kind, {}), new.kinds.get(kind, {})
                if was is not now:
                    changed += [item for name, item in now.items() if was.get(name) != item]
                    removed += [item for name, item in was.items() if name not in now]
        return tuple(changed), tuple(removed)

    def _objects_of(self, kind: NetworkKind, name: str) -> VpcObjects:
        return self.of_vpc(SHARED if kind is NetworkKind.UPLINK else vpc_of(name))

    def replaced(self, kind: NetworkKind, name: str, item: NetworkObject | None) -> Self:
        """Return a collection in which the object ``name`` is ``item``, or is removed if ``item`` is None.

        The revision is not changed.
        """
        vpc = SHARED if kind is NetworkKind.UPLINK else vpc_of(name)
        objects = self.of_vpc(vpc).replaced(kind, name, item)
        vpcs = dict(self.vpcs)
        vpcs[vpc] = objects
        if not objects.kinds:
            del vpcs[vpc]
        return replace(self, vpcs=vpcs)


def _index(port: Port, addresses: dict[int, str], macs: dict[str, str]) -> None:
    addresses.update((int(address), port.name) for address in port.addresses)
    macs[port.mac] = port.name


def _unindex(port: Port, addresses: dict[int, str], macs: dict[str, str]) -> None:
    """Remove the port from the indexes, except addresses and MACs that another port has taken over.

    A copy of the store in another process may receive changes in any order, so another port may have been added first.
    """
    for address in port.addresses:
        if addresses.get(int(address)) == port.name:
            del addresses[int(address)]
    if macs.get(port.mac) == port.name:
        del macs[port.mac]
