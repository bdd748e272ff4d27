"""Acceptance of objects that connect two VPCs: peerings and service endpoints.

A peering is accepted once both VPCs have requested it. An endpoint is accepted if its load balancer is offered to its
VPC. An object that is not accepted has no effect and is not visible to the other VPC. It is deleted together with the
object to which it refers.
"""

from __future__ import annotations

from collections.abc import Iterator

from calabash.model.addresses import Network
from calabash.model.network import Peering, Vpc, vpc_of
from calabash.model.network_services import LoadBalancer, ServiceEndpoint
from calabash.net.addresses.ranges import is_within
from calabash.net.objects.collection import NetworkObjects, VpcObjects

ALL_TENANTS = "*"


def reverse_name(peering: str) -> str:
    """Return the name of the peering in the opposite direction: ``green/red`` for ``red/green``."""
    own, other = peering.split("/")
    return f"{other}/{own}"


def tenant_of(objects: VpcObjects) -> str | None:
    """Return the tenant of the VPC, or None if the VPC does not exist."""
    return next((vpc.tenant for vpc in objects.all(Vpc).values()), None)


def peering_accepted(networks: NetworkObjects, item: Peering) -> bool:
    """Return True if both VPCs have requested the peering."""
    return networks.find(Peering, reverse_name(item.name)) is not None


def accepted_peerings(networks: NetworkObjects, vpc: str) -> Iterator[tuple[Peering, Vpc]]:
    """Yield the accepted peerings of a VPC, each with the peer VPC."""
    for item in networks.of_vpc(vpc).all(Peering).values():
        other = networks.find(Vpc, item.name.split("/")[1])
        if other is not None and peering_accepted(networks, item):
            yield item, other


def peering_ranges(item: Peering, other: Vpc) -> tuple[Network, ...]:
    """Return the ranges that a VPC reaches by a peering with ``other``.

    These are the routes of the peering that lie within the ranges of ``other``, or all its ranges if the peering has no routes.
    """
    return tuple(route for route in item.routes if is_within(route, other.cidrs)) if item.routes else other.cidrs


def offered_balancer(networks: NetworkObjects, source: str, consumer: str) -> LoadBalancer | None:
    """Return the load balancer ``source`` if it exists and is offered to the VPC ``consumer``, else None."""
    tenant = tenant_of(networks.of_vpc(consumer))
    provider = networks.of_vpc(vpc_of(source))
    balancer = provider.all(LoadBalancer).get(source)
    if balancer is None:
        return None
    permitted = tenant == tenant_of(provider) or ALL_TENANTS in balancer.offered_to or tenant in balancer.offered_to
    return balancer if permitted else None


def endpoint_accepted(networks: NetworkObjects, item: ServiceEndpoint) -> bool:
    """Return True if the load balancer of the endpoint exists and is offered to the VPC of the endpoint."""
    return offered_balancer(networks, item.source, vpc_of(item.name)) is not None
