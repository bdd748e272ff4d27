"""The book of networks as the controller knows it, and which VPCs a change of it concerns."""

from __future__ import annotations

from collections.abc import Iterable

from calabash.model.addresses import Address
from calabash.model.network import NetworkGateway, NetworkKind, NetworkObject, Peering, Port, Uplink, kind_of, vpc_of
from calabash.model.network_services import LoadBalancer, ServiceEndpoint
from calabash.net.objects.collection import SHARED
from calabash.net.ovn.northbound.rows import PLATFORM
from calabash.net.ovn.translation.load_balancers import tracks_closed_backends
from calabash.net.ovn.translation.view import first_of_version
from calabash.net.store.networks import Networks
from calabash.netd.source import Key, NetworkNews

MANY = 50  # of VPCs that change at once: then all are looked at
_ALONE = frozenset((NetworkKind.PORT, NetworkKind.DNS_RECORD, NetworkKind.QOS_POLICY, NetworkKind.SECURITY_GROUP))


class KnownNetworks:
    """A book that follows another. Not for several threads."""

    def __init__(self) -> None:
        self.networks = Networks()
        self.generations: dict[Key, int] = {}
        self.revision = -1

    def take(self, news: NetworkNews) -> frozenset[str]:
        """The owners of rows that may be others now: VPCs, and PLATFORM."""
        if news.revision == self.revision and not news.whole:
            return frozenset()
        before = self.networks
        if news.whole:
            after = Networks.from_objects((item for item, _ in news.items), news.revision)
            self.generations = {}
        else:
            after = before
            for item, _ in news.items:
                after = after.replaced(kind_of(item), item.name, item)
            for kind, name in news.removed:
                after = after.replaced(kind, name, None)
                self.generations.pop((kind, name), None)
        self.generations.update(((kind_of(item), item.name), generation) for item, generation in news.items)
        self.networks, self.revision = after, news.revision
        put, gone = after.changes_since(before)
        return concerned(before, put, gone) | concerned(after, put, gone)

    def vpcs(self) -> list[str]:
        return [vpc for vpc in self.networks.vpcs if vpc != SHARED]

    def keys_of(self, vpc: str) -> list[Key]:
        return [(kind_of(item), item.name) for item in self.networks.of_vpc(vpc)]


def concerned(networks: Networks, put: Iterable[NetworkObject], gone: Iterable[NetworkObject]) -> frozenset[str]:
    """Whose rows may depend on what is put or gone: its VPC, whom that one is peered with or serves, and what is shared."""
    changed = [*put, *gone]
    owners = {vpc_of(item.name) for item in changed if not isinstance(item, Uplink)}
    uplinks = {item.name for item in changed if isinstance(item, Uplink)}
    if any(kind_of(item) not in _ALONE for item in changed):
        owners.add(PLATFORM)
        if len(owners) > MANY:
            return frozenset(owners | networks.vpcs.keys() - {SHARED})
        owners |= {other for vpc in tuple(owners) for other in _joined(networks, vpc)}
    if uplinks:
        owners |= {vpc_of(g.name) for g in networks.all(NetworkGateway) if g.uplink in uplinks or not g.uplink}
    return frozenset(owners)


def _joined(networks: Networks, vpc: str) -> set[str]:
    """VPCs whose routes or endpoints lead to this one, or from it."""
    found = {peer.name.split("/", 1)[1] for peer in networks.of_vpc(vpc).all(Peering).values()}
    for endpoint in networks.of_vpc(vpc).all(ServiceEndpoint).values():
        found.add(vpc_of(endpoint.source))
    return found | _leading(networks, vpc)


def _leading(networks: Networks, vpc: str) -> set[str]:
    return {
        other
        for other, objects in networks.vpcs.items()
        if f"{other}/{vpc}" in objects.all(Peering)
        or any(vpc_of(endpoint.source) == vpc for endpoint in objects.all(ServiceEndpoint).values())
    }


def backends_of(networks: Networks) -> dict[tuple[str, int], Address]:
    """The backends of layer 4 balancers with checks of TCP, by port and number, with the address at which they serve."""
    found = {}
    for balancer in networks.all(LoadBalancer):
        for backend in balancer.backends if tracks_closed_backends(balancer) else ():
            port = networks.find(Port, backend.port)
            address = first_of_version(port.addresses, balancer.vip.version) if port is not None else None
            if address is not None:
                found[backend.port, backend.number] = address
    return found
