"""Dependents of a network object: the objects that prevent its deletion, and those that are deleted with it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from calabash.model.network import (
    DedicatedLine,
    Eip,
    NatRule,
    NetworkGateway,
    NetworkObject,
    NetworkRoute,
    Peering,
    Port,
    QosPolicy,
    SecurityGroup,
    Subnet,
    Uplink,
    Vpc,
    vpc_of,
)
from calabash.model.network_services import LoadBalancer, ServiceEndpoint
from calabash.net.addresses.ranges import range_of
from calabash.net.checks.common import is_reserved_name
from calabash.net.checks.managed_objects import managed_label
from calabash.net.checks.ports import subnet_of
from calabash.net.checks.subnets import DEFAULT_GROUP
from calabash.net.objects.acceptance import endpoint_accepted
from calabash.net.objects.collection import NetworkObjects, VpcObjects


def dependents(networks: NetworkObjects, item: NetworkObject) -> Iterator[NetworkObject]:
    """Yield the objects, in its VPC and in others, that refer to ``item`` and would be invalid without it."""
    objects = networks.of_vpc(vpc_of(item.name))
    match item:
        case Vpc():
            kept = f"{item.name}/{DEFAULT_GROUP}"
            yield from (other for other in objects if other is not item and other.name != kept)
        case Uplink():
            yield from (gateway for gateway in networks.all(NetworkGateway) if gateway.uplink == item.name)
        case LoadBalancer():
            yield from (endpoint for endpoint in endpoints_of(networks, item) if endpoint_accepted(networks, endpoint))
        case _:
            yield from _dependents_in_vpc(objects, item)


def _dependents_in_vpc(objects: VpcObjects, item: NetworkObject) -> Iterator[NetworkObject]:
    match item:
        case Subnet():
            yield from _dependents_of_subnet(objects, item)
        case Port():
            yield from _dependents_of_port(objects, item)
        case SecurityGroup():
            yield from (port for port in objects.all(Port).values() if item.name in port.security_groups)
            for group in objects.all(SecurityGroup).values():
                if group.name != item.name and any(rule.peer_group == item.name for rule in group.rules):
                    yield group
        case QosPolicy():
            yield from (port for port in objects.all(Port).values() if port.qos == item.name)
        case NetworkGateway():
            yield from objects.all(Eip).values()
            yield from (rule for rule in objects.all(NatRule).values() if rule.eip == item.name)
        case Eip():
            yield from (rule for rule in objects.all(NatRule).values() if rule.eip == item.name)
            yield from (lb for lb in objects.all(LoadBalancer).values() if lb.vip == item.address)
        case DedicatedLine():
            for route in objects.all(NetworkRoute).values():
                if route.next_hop is not None and route.next_hop in item.cidr:
                    yield route


def _dependents_of_subnet(objects: VpcObjects, item: Subnet) -> Iterator[NetworkObject]:
    inside = [port for port in objects.all(Port).values() if subnet_of(port.name) == item.name]
    yield from (port for port in inside if not is_reserved_name(port.name))
    own = {port.name for port in inside if is_reserved_name(port.name)}
    yield from (gateway for gateway in objects.all(NetworkGateway).values() if own & set(gateway.ports))
    yield from (lb for lb in objects.all(LoadBalancer).values() if range_of(lb.vip, item.cidrs))
    yield from (endpoint for endpoint in objects.all(ServiceEndpoint).values() if endpoint.subnet == item.name)
    for route in objects.all(NetworkRoute).values():
        if route.next_hop is not None and range_of(route.next_hop, item.cidrs):
            yield route


def _dependents_of_port(objects: VpcObjects, item: Port) -> Iterator[NetworkObject]:
    for balancer in objects.all(LoadBalancer).values():
        if item.name in balancer.ports or any(backend.port == item.name for backend in balancer.backends):
            yield balancer
    yield from (gateway for gateway in objects.all(NetworkGateway).values() if item.name in gateway.ports)
    yield from (rule for rule in objects.all(NatRule).values() if rule.port == item.name)
    yield from (port for port in objects.all(Port).values() if item.name in port.virtual_parents)


def endpoints_of(networks: NetworkObjects, item: LoadBalancer) -> Iterator[ServiceEndpoint]:
    """Return the endpoints of all VPCs that refer to the load balancer."""
    return (endpoint for endpoint in networks.all(ServiceEndpoint) if endpoint.source == item.name)


def foreign_dependents(networks: NetworkObjects, vpc: Vpc) -> Iterator[NetworkObject]:
    """Yield the objects of other VPCs that would be invalid without this VPC."""
    for balancer in networks.of_vpc(vpc.name).all(LoadBalancer).values():
        yield from dependents(networks, balancer)


def managed_by(objects: VpcObjects, item: NetworkObject) -> tuple[NetworkObject, ...]:
    """Return the managed objects of an object, in an order in which they can be deleted."""
    if not isinstance(item, LoadBalancer | NetworkGateway) or not item.ports:
        return ()
    group = objects.all(SecurityGroup)[f"{vpc_of(item.name)}/{managed_label(item)}"]
    return (*(objects.all(Port)[name] for name in reversed(item.ports)), group)


def orphans(networks: NetworkObjects, item: NetworkObject) -> Iterator[NetworkObject]:
    """Yield the peerings and endpoints of other VPCs that refer to ``item`` but were not accepted.

    They are deleted with ``item``. Otherwise a later object of the same name might accept them unintentionally.
    """
    match item:
        case Vpc():
            asked = (f"{vpc}/{item.name}" for vpc in networks.vpcs)
            yield from filter(None, (networks.find(Peering, name) for name in asked))
            balancers = networks.of_vpc(item.name).all(LoadBalancer).values()
            yield from itertools.chain.from_iterable(endpoints_of(networks, balancer) for balancer in balancers)
        case LoadBalancer():
            yield from endpoints_of(networks, item)
