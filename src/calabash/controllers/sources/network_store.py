"""Local copy of the store of networks, and the owners of rows that a change affects."""

from __future__ import annotations

from collections.abc import Iterable

from calabash.controllers.sources.network_source import Key, NetworkUpdate
from calabash.model.addresses import Address
from calabash.model.network import NetworkGateway, NetworkKind, NetworkObject, Peering, Port, Uplink, kind_of, vpc_of
from calabash.model.network_services import LoadBalancer, ServiceEndpoint
from calabash.net.objects.collection import SHARED
from calabash.net.ovn.northbound.rows import PLATFORM
from calabash.net.ovn.translation.load_balancers import tracks_closed_backends
from calabash.net.ovn.translation.view import first_of_version
from calabash.net.store.networks import Networks

MANY = 50  # if more VPCs change at once, all are reconciled
_ALONE = frozenset((NetworkKind.PORT, NetworkKind.DNS_RECORD, NetworkKind.QOS_POLICY, NetworkKind.SECURITY_GROUP))


class KnownNetworks:
    """Copy of a store of networks that follows its changes. Not thread-safe."""

    def __init__(self) -> None:
        self.networks = Networks()
        self.generations: dict[Key, int] = {}
        self.revision = -1

    def apply_update(self, update: NetworkUpdate) -> frozenset[str]:
        """Apply a change of the store; return the owners (VPCs, and PLATFORM) whose OVN rows may depend on it."""
        if update.revision == self.revision and not update.whole:
            return frozenset()
        before = self.networks
        if update.whole:
            after = Networks.from_objects((item for item, _ in update.items), update.revision)
            self.generations = {}
        else:
            after = before
            for item, _ in update.items:
                after = after.replaced(kind_of(item), item.name, item)
            for kind, name in update.removed:
                after = after.replaced(kind, name, None)
                self.generations.pop((kind, name), None)
        self.generations.update(((kind_of(item), item.name), generation) for item, generation in update.items)
        self.networks, self.revision = after, update.revision
        put, removed_objects = after.changes_since(before)
        return affected_owners(before, put, removed_objects) | affected_owners(after, put, removed_objects)

    def vpcs(self) -> list[str]:
        return [vpc for vpc in self.networks.vpcs if vpc != SHARED]

    def keys_of(self, vpc: str) -> list[Key]:
        return [(kind_of(item), item.name) for item in self.networks.of_vpc(vpc)]


def affected_owners(
    networks: Networks, put: Iterable[NetworkObject], removed_objects: Iterable[NetworkObject]
) -> frozenset[str]:
    """Return the owners whose rows may depend on the changed objects.

    The result has the VPCs of the objects, the VPCs that peerings or endpoints join to these, and PLATFORM. If more
    than MANY owners have changed, it has all VPCs.
    """
    changed = [*put, *removed_objects]
    owners = {vpc_of(item.name) for item in changed if not isinstance(item, Uplink)}
    uplinks = {item.name for item in changed if isinstance(item, Uplink)}
    if any(kind_of(item) not in _ALONE for item in changed):
        owners.add(PLATFORM)
        if len(owners) > MANY:
            return frozenset(owners | networks.vpcs.keys() - {SHARED})
        owners |= {other for vpc in tuple(owners) for other in _joined_vpcs(networks, vpc)}
    if uplinks:
        owners |= {vpc_of(g.name) for g in networks.all(NetworkGateway) if g.uplink in uplinks or not g.uplink}
    return frozenset(owners)


def _joined_vpcs(networks: Networks, vpc: str) -> set[str]:
    """Return the VPCs that are joined to this one by peerings or endpoints, in either direction."""
    found = {peer.name.split("/", 1)[1] for peer in networks.of_vpc(vpc).all(Peering).values()}
    for endpoint in networks.of_vpc(vpc).all(ServiceEndpoint).values():
        found.add(vpc_of(endpoint.source))
    return found | _referring_vpcs(networks, vpc)


def _referring_vpcs(networks: Networks, vpc: str) -> set[str]:
    """Return the VPCs with a peering to this VPC or an endpoint of one of its services."""
    return {
        other
        for other, objects in networks.vpcs.items()
        if f"{other}/{vpc}" in objects.all(Peering)
        or any(vpc_of(endpoint.source) == vpc for endpoint in objects.all(ServiceEndpoint).values())
    }


def backends_of(networks: Networks) -> dict[tuple[str, int], Address]:
    """Return the addresses of the backends of L4 load balancers with tcp checks, by port name and port number."""
    found = {}
    for balancer in networks.all(LoadBalancer):
        for backend in balancer.backends if tracks_closed_backends(balancer) else ():
            port = networks.find(Port, backend.port)
            address = first_of_version(port.addresses, balancer.vip.version) if port is not None else None
            if address is not None:
                found[backend.port, backend.number] = address
    return found
