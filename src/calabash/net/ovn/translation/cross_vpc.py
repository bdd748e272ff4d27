"""Rows of what leads from one VPC into another: peerings, and endpoints, which are services under an address of one's own.

A peering joins two routers by a pair of ports, each with routes to the other's ranges; it stands when both have asked. It is
no way through: what comes in by it comes from the other's ranges and goes to one's own, or is dropped.

An endpoint works whatever ranges both have. The consumer's router hides its whole VPC behind one transit address, and sends
to another one what its own clients send to the endpoint's address; at the provider's router that is an address of the load
balancer. The switch between them lets nothing else pass (``desired_platform``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from calabash.model.addresses import Address
from calabash.model.network import NetworkKind, Peering, Subnet, Vpc, vpc_of
from calabash.model.network_services import Layer, LoadBalancer, ServiceEndpoint
from calabash.net.addresses.derived import MacUse, endpoint_interfaces, peering_interfaces, platform_mac
from calabash.net.objects.acceptance import offered, peered_ranges, peering_stands
from calabash.net.objects.collection import NetworkObjects
from calabash.net.ovn.northbound import naming
from calabash.net.ovn.northbound.draft import Draft
from calabash.net.ovn.northbound.rows import Ref, Value
from calabash.net.ovn.translation.gateways import add_snat
from calabash.net.ovn.translation.load_balancers import AccessOffer, add_balancer, add_closed, add_offer, targets_of
from calabash.net.ovn.translation.routes import add_range_guards, add_route
from calabash.net.ovn.translation.topology import add_gateway_port, add_router_port
from calabash.net.ovn.translation.view import View, socket_name

CONSUMER, PROVIDER, SERVICE = 0, 1, 2  # sides of an endpoint's switch


def add_peerings(view: View, draft: Draft) -> None:
    for peering in view.all(Peering).values():
        other = view.networks.find(Vpc, peering.name.rsplit("/", 1)[1])
        if other is not None and peering_stands(view.networks, peering):
            _add_peering(view, draft, peering, other)


def _add_peering(view: View, draft: Draft, peering: Peering, other: Vpc) -> None:
    own = view.vpc
    side = int(own.name > other.name)
    columns: dict[str, Value] = {
        "mac": platform_mac(MacUse.PEERING, own.number, peering.number),
        "networks": frozenset(map(str, peering_interfaces(peering.number, side))),
        "peer": naming.router_port(naming.peer_of(other.name, own.name)),
    }
    port = add_router_port(view, draft, naming.peer_of(own.name, other.name), columns)
    theirs = [cidr for subnet in view.networks.of_vpc(other.name).all(Subnet).values() for cidr in subnet.cidrs]
    hops = {interface.version: interface.ip for interface in peering_interfaces(peering.number, 1 - side)}
    for prefix in peered_ranges(peering, other) if peering.routes else theirs:
        add_route(view, draft, f"{peering.name}:peer:{prefix}", prefix, (hops[prefix.version], port))
    add_range_guards(view, draft, port, "src", other.cidrs)
    add_range_guards(view, draft, port, "dst", own.cidrs)


@dataclass(frozen=True, slots=True)
class Crossing:
    """An endpoint that can be carried out, with the load balancer behind it."""

    endpoint: ServiceEndpoint
    balancer: LoadBalancer

    @property
    def consumer(self) -> str:
        return vpc_of(self.endpoint.name)

    @property
    def provider(self) -> str:
        return vpc_of(self.endpoint.source)

    def address(self, side: int) -> Address:
        """In the switch between them, of the load balancer's IP version."""
        interfaces = endpoint_interfaces(self.endpoint.number, side)
        return next(found.ip for found in interfaces if found.version == self.balancer.vip.version)


def crossings(networks: NetworkObjects, vpc: str = "") -> Iterator[Crossing]:
    """Endpoints of all VPCs, or of ``vpc`` at one end, whose load balancer is there and offered to them."""
    for endpoint in _endpoints(networks):
        if vpc and vpc not in (vpc_of(endpoint.name), vpc_of(endpoint.source)):
            continue
        balancer = offered(networks, endpoint.source, vpc_of(endpoint.name))
        if balancer is not None and endpoint.vip is not None and endpoint.vip.version == balancer.vip.version:
            yield Crossing(endpoint, balancer)


def _endpoints(networks: NetworkObjects) -> Iterator[ServiceEndpoint]:
    """Of all VPCs. This is asked for each VPC, and few have any, so that the others are passed over at once."""
    for objects in networks.vpcs.values():
        if NetworkKind.SERVICE_ENDPOINT in objects.kinds:
            yield from objects.all(ServiceEndpoint).values()


def add_endpoints(view: View, draft: Draft) -> None:
    for crossing in crossings(view.networks, view.vpc.name):
        if crossing.consumer == view.vpc.name:
            _add_consumer(view, draft, crossing)
        if crossing.provider == view.vpc.name:
            _add_provider(view, draft, crossing)


def _add_side(view: View, draft: Draft, crossing: Crossing, side: int) -> Ref:
    number = crossing.endpoint.number
    columns: dict[str, Value] = {
        "mac": platform_mac(MacUse.ENDPOINT, view.vpc.number, number),
        "networks": frozenset(map(str, endpoint_interfaces(number, side))),
    }
    network = naming.endpoint_of(view.vpc.name, number)
    return add_gateway_port(view, draft, network, columns, view.priorities((), number))


def _add_consumer(view: View, draft: Draft, crossing: Crossing) -> None:
    endpoint, balancer = crossing.endpoint, crossing.balancer
    assert endpoint.vip is not None
    port = _add_side(view, draft, crossing, CONSUMER)
    add_snat(view, draft, endpoint.name, crossing.address(CONSUMER), port)
    number = balancer.vip_number
    vips = {socket_name(endpoint.vip, number): socket_name(crossing.address(SERVICE), number)}
    name = naming.endpoint_balancer(naming.endpoint_of(view.vpc.name, endpoint.number))
    add_balancer(view, draft, name, vips, balancer.protocol)


def _add_provider(view: View, draft: Draft, crossing: Crossing) -> None:
    endpoint, balancer = crossing.endpoint, crossing.balancer
    _add_side(view, draft, crossing, PROVIDER)
    vips = {socket_name(crossing.address(SERVICE), balancer.vip_number): targets_of(view, balancer)}
    name = naming.endpoint_balancer(naming.endpoint_of(view.vpc.name, endpoint.number))
    add_closed(view, draft, balancer, add_balancer(view, draft, name, vips, balancer.protocol, switches=False))
    pair = balancer.layer is Layer.L7
    ports = balancer.ports if pair else {backend.port for backend in balancer.backends}
    numbers = [balancer.vip_number] if pair else [backend.number for backend in balancer.backends]
    group = naming.group(view.vpc.name, "offer", str(endpoint.number))
    peer = f"ip{balancer.vip.version}.src == {crossing.address(CONSUMER)}"
    add_offer(draft, group, ports, AccessOffer(balancer.protocol, frozenset(numbers), peer))
