"""What rendering for Kube-OVN is made of: resources, what cannot be said there, and names that no two objects share.

Kube-OVN's objects are of the whole cluster, and its names end up in OVN with dashes and dots made equal. So an object of a VPC
is called ``cbNUMBER-LABEL`` by the VPC's number, never by joined names, which ``red/a-b`` and ``red-a/b`` would share.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from calabash.model.addresses import Address, Network
from calabash.model.network import NetworkKind, NetworkObject, Vpc, kind_of, vpc_of
from calabash.net.objects.collection import NetworkObjects, VpcObjects

API = "kubeovn.io/v1"
NAME = "calabash.dev/name"  # annotation: the object that a resource was made of
PROVIDER_NAME_MAX = 12  # of a ProviderNetwork: a bridge is named after it
MEGABIT = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeOvnResource:
    """A custom resource; ``namespace`` empty: of the whole cluster."""

    kind: str
    name: str
    spec: Mapping[str, Any]
    of: str
    api: str = API
    namespace: str = ""

    def document(self) -> dict[str, Any]:
        """As ``kubectl apply`` takes it."""
        meta: dict[str, Any] = {"name": self.name, "annotations": {NAME: self.of}}
        if self.namespace:
            meta["namespace"] = self.namespace
        body = {"data": dict(self.spec)} if self.kind == "ConfigMap" else {"spec": dict(self.spec)}
        return {"apiVersion": self.api, "kind": self.kind, "metadata": meta} | (body if self.spec else {})


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Unsupported:
    """What Kube-OVN cannot do of an object; ``whole``: nothing of it was rendered."""

    kind: NetworkKind
    name: str
    reason: str
    whole: bool = True


@dataclass(slots=True, kw_only=True)
class Rendering:
    """What has been rendered so far.

    Args:
        interfaces: the network card of hosts by what uplinks call it (``physical``); what is not in it is called the same.
        pods: annotations of the pod that is a port, by the port's name.
        parts: what became a part of something else, and of what.
    """

    networks: NetworkObjects
    interfaces: Mapping[str, str] = field(default_factory=dict)
    resources: list[KubeOvnResource] = field(default_factory=list)
    unsupported: list[Unsupported] = field(default_factory=list)
    pods: dict[str, dict[str, str]] = field(default_factory=dict)
    parts: dict[tuple[NetworkKind, str], str] = field(default_factory=dict)

    def add(self, kind: str, name: str, spec: Mapping[str, Any], of: NetworkObject) -> None:
        """One resource; what its spec leaves to Kube-OVN (None, empty) is left out."""
        kept = {key: value for key, value in spec.items() if value not in (None, "", [], {})}
        self.resources.append(KubeOvnResource(kind=kind, name=name, spec=kept, of=of.name))

    def refuse(self, item: NetworkObject, reason: str, *, whole: bool = True) -> None:
        """``item``, or a part of it, cannot be had."""
        self.unsupported.append(Unsupported(kind=kind_of(item), name=item.name, reason=reason, whole=whole))

    def part(self, item: NetworkObject, of: str) -> None:
        """``item`` has no resource of its own."""
        self.parts[kind_of(item), item.name] = of

    def vpc(self, name: str) -> Vpc:
        """The VPC of an object's path. Raises KeyError where the book has none, which it never lets happen."""
        return self.networks.of_vpc(vpc_of(name)).all(Vpc)[vpc_of(name)]

    def objects(self, name: str) -> VpcObjects:
        """All of its VPC."""
        return self.networks.of_vpc(vpc_of(name))

    def space(self, name: str) -> str:
        """``cbNUMBER``: the VPC of an object's path, and its namespace."""
        return f"cb{self.vpc(name).number}"

    def name(self, path: str) -> str:
        """``cbNUMBER-LABEL`` of ``VPC/LABEL``."""
        return f"{self.space(path)}-{path.split('/')[1]}"


def by_version(addresses: Iterable[Address], version: int) -> str:
    """The address of that IP version, "" none."""
    return next((str(address) for address in addresses if address.version == version), "")


def joined(values: Iterable[Address | Network]) -> str:
    """As Kube-OVN writes one of each version: IPv4 first, a comma between."""
    return ",".join(str(value) for value in sorted(values, key=lambda value: value.version))


def protocol_of(cidrs: Iterable[Network]) -> str:
    """Kube-OVN's word for the IP versions of ranges."""
    versions = {cidr.version for cidr in cidrs}
    return "Dual" if len(versions) > 1 else f"IPv{next(iter(versions), 4)}"
