"""What a book of networks holds, as values that share what did not change: a change copies one kind of one VPC.

``VpcObjects`` is one VPC's objects with two indexes of its ports; ``NetworkObjects`` are all of them. Both only read
and replace; ``Networks`` (``calabash.net.store.networks``) judges.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Self, TypeVar, cast

from calabash.model.network import KINDS, NetworkKind, NetworkObject, Port, Uplink, kind_of, vpc_of

T = TypeVar("T", bound=NetworkObject)
SHARED = ""  # whose objects uplinks are: no VPC's


@dataclass(frozen=True, slots=True)
class VpcObjects:
    """One VPC's objects.

    Args:
        kinds: names are whole paths; a kind without objects is absent.
        addresses: port by address (as a number: ranges below 2^32 are IPv4's, others IPv6's).
        macs: port by MAC.
    """

    kinds: Mapping[NetworkKind, Mapping[str, NetworkObject]] = field(default_factory=dict)
    addresses: Mapping[int, str] = field(default_factory=dict)
    macs: Mapping[str, str] = field(default_factory=dict)

    def all(self, of: type[T]) -> Mapping[str, T]:
        """All objects of one class, by name."""
        return cast(Mapping[str, T], self.kinds.get(KINDS[of], {}))

    def __iter__(self) -> Iterator[NetworkObject]:
        for kind in NetworkKind:
            yield from self.kinds.get(kind, {}).values()

    def __len__(self) -> int:
        return sum(map(len, self.kinds.values()))

    def replaced(self, kind: NetworkKind, name: str, item: NetworkObject | None) -> VpcObjects:
        """With ``item`` in place of what had its name; None: without it."""
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
            _forget(before, addresses, macs)
        if isinstance(item, Port):
            _index(item, addresses, macs)
        return VpcObjects(kinds, addresses, macs)


NOTHING = VpcObjects()


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkObjects:
    """All objects, by VPC; ``revision`` is one higher with every change."""

    vpcs: Mapping[str, VpcObjects] = field(default_factory=dict)
    revision: int = 0

    @classmethod
    def of(cls, items: Iterable[NetworkObject], revision: int) -> Self:
        """Of completed objects that were judged when they were put: from a store, or from another process's snapshot."""
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

    def find(self, of: type[T], name: str) -> T | None:
        """``get`` by class."""
        return cast(T | None, self.get(KINDS[of], name))

    def items(self, kind: NetworkKind | None = None) -> Iterator[NetworkObject]:
        """All of one kind, or of all kinds; VPCs in the order of their creation, then by kind, then in that of creation."""
        for objects in self.vpcs.values():
            yield from objects if kind is None else objects.kinds.get(kind, {}).values()

    def all(self, of: type[T]) -> Iterator[T]:
        """``items`` by class."""
        return cast(Iterator[T], self.items(KINDS[of]))

    def of_vpc(self, vpc: str) -> VpcObjects:
        """A VPC's own objects, itself among them; empty if there is none of that name."""
        return self.vpcs.get(vpc, NOTHING)

    def uplinks(self) -> Mapping[str, Uplink]:
        return self.of_vpc(SHARED).all(Uplink)

    def changes_since(self, before: NetworkObjects) -> tuple[tuple[NetworkObject, ...], tuple[NetworkObject, ...]]:
        """What is new or different, and what is gone, compared with ``before``; the cost is that of VPCs that changed."""
        put: list[NetworkObject] = []
        gone: list[NetworkObject] = []
        for vpc in {**before.vpcs, **self.vpcs}:
            old, new = before.of_vpc(vpc), self.of_vpc(vpc)
            for kind in NetworkKind if old is not new else ():
                was, now = old.kinds.get(kind, {}), new.kinds.get(kind, {})
                if was is not now:
                    put += [item for name, item in now.items() if was.get(name) != item]
                    gone += [item for name, item in was.items() if name not in now]
        return tuple(put), tuple(gone)

    def _objects_of(self, kind: NetworkKind, name: str) -> VpcObjects:
        return self.of_vpc(SHARED if kind is NetworkKind.UPLINK else vpc_of(name))

    def replaced(self, kind: NetworkKind, name: str, item: NetworkObject | None) -> Self:
        """As ``VpcObjects.replaced``; the revision stays."""
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


def _forget(port: Port, addresses: dict[int, str], macs: dict[str, str]) -> None:
    """What another port has got meanwhile stays its: who follows a book takes changes in any order."""
    for address in port.addresses:
        if addresses.get(int(address)) == port.name:
            del addresses[int(address)]
    if macs.get(port.mac) == port.name:
        del macs[port.mac]
