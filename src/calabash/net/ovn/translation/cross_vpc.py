"""Translation of peerings and service endpoints, which join two VPCs.

Once both VPCs have requested a peering, their routers are joined by a pair of ports, and each router gets routes to the
ranges of the other VPC. A peering is not transitive: a packet that enters through it is dropped unless it comes from
the ranges of the peer and goes to the ranges of the VPC.

A service endpoint gives the VPC of a consumer an address for the load balancer of a provider's VPC. It works even if
the ranges of both VPCs overlap, because the packets between the two routers have transit addresses. The consumer's
router translates every source address to one transit address. It translates the address of the endpoint to another
transit address, which the provider's router has as an address of the load balancer. The switch between the routers
drops all other packets (``platform_rows``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from calabash.model.addresses import Address
from calabash.model.network import NetworkKind, Peering, Subnet, Vpc, vpc_of
from calabash.model.network_services import Layer, LoadBalancer, ServiceEndpoint
from calabash.net.addresses.derived import MacUse, endpoint_interfaces, peering_interfaces, platform_mac
from calabash.net.objects.acceptance import offered_balancer, peering_accepted, peering_ranges
from calabash.net.objects.collection import NetworkObjects
from calabash.net.ovn.northbound import naming
from calabash.net.ovn.northbound.draft import Draft
from calabash.net.ovn.northbound.rows import Ref, Value
from calabash.net.ovn.translation.gateways import add_snat
from calabash.net.ovn.translation.load_balancers import (
    PortAccess,
    add_balancer,
    add_closed_backends,
    add_port_access,
    targets_of,
)
from calabash.net.ovn.translation.routes import add_range_guards, add_route
from calabash.net.ovn.translation.topology import add_gateway_port, add_router_port
from calabash.net.ovn.translation.view import View, format_socket

CONSUMER, PROVIDER, SERVICE = 0, 1, 2  # sides of the switch of an endpoint


def add_peerings(view: View, draft: Draft) -> None:
    """Add the accepted peerings of the VPC."""
    for peering in view.all(Peering).values():
        other = view.networks.find(Vpc, peering.name.rsplit("/", 1)[1])
        if other is not None and peering_accepted(view.networks, peering):
            _add_peering(view, draft, peering, other)


def _add_peering(view: View, draft: Draft, peering: Peering, other: Vpc) -> None:
    own = view.vpc
    side = int(own.name > other.name)
    columns: dict[str, Value] = {
        "mac": platform_mac(MacUse.PEERING, own.number, peering.number),
        "networks": frozenset(map(str, peering_interfaces(peering.number, side))),
        "peer": naming.router_port(naming.peering_link(other.name, own.name)),
    }
    port = add_router_port(view, draft, naming.peering_link(own.name, other.name), columns)
    peer_cidrs = [cidr for subnet in view.networks.of_vpc(other.name).all(Subnet).values() for cidr in subnet.cidrs]
    hops = {interface.version: interface.ip for interface in peering_interfaces(peering.number, 1 - side)}
    for prefix in peering_ranges(peering, other) if peering.routes else peer_cidrs:
        add_route(view, draft, f"{peering.name}:peer:{prefix}", prefix, (hops[prefix.version], port))
    add_range_guards(view, draft, port, "src", other.cidrs)
    add_range_guards(view, draft, port, "dst", own.cidrs)


@dataclass(frozen=True, slots=True)
class AcceptedEndpoint:
    """Accepted endpoint with its load balancer."""

    endpoint: ServiceEndpoint
    balancer: LoadBalancer

    @property
    def consumer(self) -> str:
        """VPC of the endpoint."""
        return vpc_of(self.endpoint.name)

    @property
    def provider(self) -> str:
        """VPC of the load balancer."""
        return vpc_of(self.endpoint.source)

    def address(self, side: int) -> Address:
        """Return the transit address of one side, CONSUMER, PROVIDER or SERVICE, in the load balancer's IP version."""
        interfaces = endpoint_interfaces(self.endpoint.number, side)
        return next(found.ip for found in interfaces if found.version == self.balancer.vip.version)


def accepted_endpoints(networks: NetworkObjects, vpc: str = "") -> Iterator[AcceptedEndpoint]:
    """Yield the accepted endpoints of which ``vpc`` is the consumer or provider; "" yields those of all VPCs."""
    for endpoint in _endpoints(networks):
        if vpc and vpc not in (vpc_of(endpoint.name), vpc_of(endpoint.source)):
            continue
        balancer = offered_balancer(networks, endpoint.source, vpc_of(endpoint.name))
        if balancer is not None and endpoint.vip is not None and endpoint.vip.version == balancer.vip.version:
            yield AcceptedEndpoint(endpoint, balancer)


def _endpoints(networks: NetworkObjects) -> Iterator[ServiceEndpoint]:
    """Yield the endpoints of all VPCs.

    This is called once for each VPC, so VPCs without endpoints are skipped quickly.
    """
    for objects in networks.vpcs.values():
        if NetworkKind.SERVICE_ENDPOINT in objects.kinds:
            yield from objects.all(ServiceEndpoint).values()


def add_endpoints(view: View, draft: Draft) -> None:
    """Add the rows of endpoints whose consumer or provider is the VPC."""
    for accepted in accepted_endpoints(view.networks, view.vpc.name):
        if accepted.consumer == view.vpc.name:
            _add_consumer(view, draft, accepted)
        if accepted.provider == view.vpc.name:
            _add_provider(view, draft, accepted)


def _add_side(view: View, draft: Draft, accepted: AcceptedEndpoint, side: int) -> Ref:
    number = accepted.endpoint.number
    columns: dict[str, Value] = {
        "mac": platform_mac(MacUse.ENDPOINT, view.vpc.number, number),
        "networks": frozenset(map(str, endpoint_interfaces(number, side))),
    }
    network = naming.endpoint_link(view.vpc.name, number)
    return add_gateway_port(view, draft, network, columns, view.priorities((), number))


def _add_consumer(view: View, draft: Draft, accepted: AcceptedEndpoint) -> None:
    endpoint, balancer = accepted.endpoint, accepted.balancer
    assert endpoint.vip is not None
    port = _add_side(view, draft, accepted, CONSUMER)
    add_snat(view, draft, endpoint.name, accepted.address(CONSUMER), port)
    number = balancer.vip_number
    vips = {format_socket(endpoint.vip, number): format_socket(accepted.address(SERVICE), number)}
    name = naming.endpoint_balancer(naming.endpoint_link(view.vpc.name, endpoint.number))
    add_balancer(view, draft, name, vips, balancer.protocol)


def _add_provider(view: View, draft: Draft, accepted: AcceptedEndpoint) -> None:
    endpoint, balancer = accepted.endpoint, accepted.balancer
    _add_side(view, draft, accepted, PROVIDER)
    vips = {format_socket(accepted.address(SERVICE), balancer.vip_number): targets_of(view, balancer)}
    name = naming.endpoint_balancer(naming.endpoint_link(view.vpc.name, endpoint.number))
    add_closed_backends(view, draft, balancer, add_balancer(view, draft, name, vips, balancer.protocol, switches=False))
    pair = balancer.layer is Layer.L7
    ports = balancer.ports if pair else {backend.port for backend in balancer.backends}
    numbers = [balancer.vip_number] if pair else [backend.number for backend in balancer.backends]
    group = naming.group(view.vpc.name, "offer", str(endpoint.number))
    peer = f"ip{balancer.vip.version}.src == {accepted.address(CONSUMER)}"
    add_port_access(draft, group, ports, PortAccess(balancer.protocol, frozenset(numbers), peer))
