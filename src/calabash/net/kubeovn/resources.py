"""Custom resources of Kube-OVN, the rendering under construction, unsupported properties, and unique resource names.

Resources of Kube-OVN are cluster-scoped, and OVN does not distinguish dashes and dots in their names. If names of VPC
and object were joined by a dash, ``red/a-b`` and ``red-a/b`` would get the same name. The resource of an object is
therefore named ``cbNUMBER-LABEL``, with the number of the VPC.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from calabash.model.addresses import Address, Network
from calabash.model.network import NetworkKind, NetworkObject, Vpc, kind_of, vpc_of
from calabash.net.objects.collection import NetworkObjects, VpcObjects

API = "kubeovn.io/v1"
NAME = "calabash.dev/name"  # annotation: the object from which a resource was rendered
PROVIDER_NAME_MAX = 12  # length of the name of a ProviderNetwork: a bridge is named after it
MEGABIT = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeOvnResource:
    """A Kubernetes resource.

    Args:
        spec: contents of ``spec``, or of ``data`` for a ConfigMap.
        of: name of the network object from which the resource was rendered.
        api: value of ``apiVersion``.
        namespace: namespace of the resource; "" if it is cluster-scoped.
    """

    kind: str
    name: str
    spec: Mapping[str, Any]
    of: str
    api: str = API
    namespace: str = ""

    def document(self) -> dict[str, Any]:
        """Return the manifest for ``kubectl apply``."""
        meta: dict[str, Any] = {"name": self.name, "annotations": {NAME: self.of}}
        if self.namespace:
            meta["namespace"] = self.namespace
        body = {"data": dict(self.spec)} if self.kind == "ConfigMap" else {"spec": dict(self.spec)}
        return {"apiVersion": self.api, "kind": self.kind, "metadata": meta} | (body if self.spec else {})


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Unsupported:
    """Object, or property of an object, that Kube-OVN does not support.

    With ``whole``, the object was not rendered at all; otherwise only a property of it is missing.
    """

    kind: NetworkKind
    name: str
    reason: str
    whole: bool = True


@dataclass(slots=True, kw_only=True)
class Rendering:
    """Rendering under construction.

    Args:
        networks: all objects to be rendered.
        interfaces: network interface of the hosts, by ``physical`` name of uplinks and lines. A name that is missing
            here is itself the name of the interface.
        resources, unsupported, pods, parts: results so far; see ``KubeOvnRendering``.
    """

    networks: NetworkObjects
    interfaces: Mapping[str, str] = field(default_factory=dict)
    resources: list[KubeOvnResource] = field(default_factory=list)
    unsupported: list[Unsupported] = field(default_factory=list)
    pods: dict[str, dict[str, str]] = field(default_factory=dict)
    parts: dict[tuple[NetworkKind, str], str] = field(default_factory=dict)

    def add(self, kind: str, name: str, spec: Mapping[str, Any], of: NetworkObject) -> None:
        """Add a resource. Empty values of the spec are omitted."""
        kept = {key: value for key, value in spec.items() if value not in (None, "", [], {})}
        self.resources.append(KubeOvnResource(kind=kind, name=name, spec=kept, of=of.name))

    def add_unsupported(self, item: NetworkObject, reason: str, *, whole: bool = True) -> None:
        """Record that an object is not supported, or, with ``whole`` False, only a property of it."""
        self.unsupported.append(Unsupported(kind=kind_of(item), name=item.name, reason=reason, whole=whole))

    def part(self, item: NetworkObject, of: str) -> None:
        """Record that ``item`` is contained in the resource ``of``."""
        self.parts[kind_of(item), item.name] = of

    def vpc(self, name: str) -> Vpc:
        """Return the VPC to which the object with this name belongs. Raises KeyError if it does not exist."""
        return self.networks.of_vpc(vpc_of(name)).all(Vpc)[vpc_of(name)]

    def objects(self, name: str) -> VpcObjects:
        """Return the objects of the VPC to which the object with this name belongs."""
        return self.networks.of_vpc(vpc_of(name))

    def space(self, name: str) -> str:
        """Return ``cbNUMBER``, the name of the Vpc resource and of the namespace to which an object belongs."""
        return f"cb{self.vpc(name).number}"

    def name(self, path: str) -> str:
        """Return the resource name ``cbNUMBER-LABEL`` of an object ``VPC/LABEL``."""
        return f"{self.space(path)}-{path.split('/')[1]}"


def by_version(addresses: Iterable[Address], version: int) -> str:
    """Return the first of the addresses that has the IP version, as text; "" if there is none."""
    return next((str(address) for address in addresses if address.version == version), "")


def join_versions(values: Iterable[Address | Network]) -> str:
    """Join one value of each IP version in the form of Kube-OVN: IPv4 first, separated by a comma."""
    return ",".join(str(value) for value in sorted(values, key=lambda value: value.version))


def protocol_of(cidrs: Iterable[Network]) -> str:
    """Return the value of Kube-OVN's ``protocol`` for the IP versions of the ranges."""
    versions = {cidr.version for cidr in cidrs}
    return "Dual" if len(versions) > 1 else f"IPv{next(iter(versions), 4)}"
