"""What takes two: a peering, which both VPCs ask for, and an endpoint of a load balancer that its owner offers.

What is asked for and does not stand has no effect, tells nobody anything, and goes when what it asks of goes.
"""

from __future__ import annotations

from collections.abc import Iterator

from calabash.model.addresses import Network
from calabash.model.network import Peering, Vpc, vpc_of
from calabash.model.network_services import LoadBalancer, ServiceEndpoint
from calabash.net.addresses.ranges import is_within
from calabash.net.objects.collection import NetworkObjects, VpcObjects

EVERYBODY = "*"


def other_side(peering: str) -> str:
    """``green/red`` of ``red/green``."""
    own, other = peering.split("/")
    return f"{other}/{own}"


def tenant_of(objects: VpcObjects) -> str | None:
    """The tenant of a VPC; None where there is no VPC."""
    return next((vpc.tenant for vpc in objects.all(Vpc).values()), None)


def peering_stands(networks: NetworkObjects, item: Peering) -> bool:
    """Whether both VPCs have asked for it."""
    return networks.find(Peering, other_side(item.name)) is not None


def peered(networks: NetworkObjects, vpc: str) -> Iterator[tuple[Peering, Vpc]]:
    """The peerings of a VPC that stand, and whom with."""
    for item in networks.of_vpc(vpc).all(Peering).values():
        other = networks.find(Vpc, item.name.split("/")[1])
        if other is not None and peering_stands(networks, item):
            yield item, other


def peered_ranges(item: Peering, other: Vpc) -> tuple[Network, ...]:
    """What the VPC reaches by a peering with ``other``: the routes that it wants and the other has, or all of its ranges."""
    return tuple(route for route in item.routes if is_within(route, other.cidrs)) if item.routes else other.cidrs


def offered(networks: NetworkObjects, source: str, consumer: str) -> LoadBalancer | None:
    """The load balancer ``source``, if the VPC ``consumer`` may have an endpoint of it."""
    tenant = tenant_of(networks.of_vpc(consumer))
    provider = networks.of_vpc(vpc_of(source))
    balancer = provider.all(LoadBalancer).get(source)
    if balancer is None:
        return None
    welcome = tenant == tenant_of(provider) or EVERYBODY in balancer.offered_to or tenant in balancer.offered_to
    return balancer if welcome else None


def endpoint_stands(networks: NetworkObjects, item: ServiceEndpoint) -> bool:
    """Whether its load balancer is there and offered to its VPC."""
    return offered(networks, item.source, vpc_of(item.name)) is not None
