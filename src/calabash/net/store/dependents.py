"""Who uses whom: why something cannot be deleted, and what goes with it."""

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
from calabash.net.checks.common import is_platform
from calabash.net.checks.managed_objects import companion_base
from calabash.net.checks.ports import subnet_of
from calabash.net.checks.subnets import DEFAULT_GROUP
from calabash.net.objects.acceptance import endpoint_stands
from calabash.net.objects.collection import NetworkObjects, VpcObjects


def users(networks: NetworkObjects, item: NetworkObject) -> Iterator[NetworkObject]:
    """What could not be as it is without ``item``, in its VPC and beyond."""
    objects = networks.of_vpc(vpc_of(item.name))
    match item:
        case Vpc():
            kept = f"{item.name}/{DEFAULT_GROUP}"
            yield from (other for other in objects if other is not item and other.name != kept)
        case Uplink():
            yield from (gateway for gateway in networks.all(NetworkGateway) if gateway.uplink == item.name)
        case LoadBalancer():
            yield from (endpoint for endpoint in endpoints_of(networks, item) if endpoint_stands(networks, endpoint))
        case _:
            yield from _users_inside(objects, item)


def _users_inside(objects: VpcObjects, item: NetworkObject) -> Iterator[NetworkObject]:
    match item:
        case Subnet():
            yield from _users_of_subnet(objects, item)
        case Port():
            yield from _users_of_port(objects, item)
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


def _users_of_subnet(objects: VpcObjects, item: Subnet) -> Iterator[NetworkObject]:
    inside = [port for port in objects.all(Port).values() if subnet_of(port.name) == item.name]
    yield from (port for port in inside if not is_platform(port.name))
    own = {port.name for port in inside if is_platform(port.name)}
    yield from (gateway for gateway in objects.all(NetworkGateway).values() if own & set(gateway.ports))
    yield from (lb for lb in objects.all(LoadBalancer).values() if range_of(lb.vip, item.cidrs))
    yield from (endpoint for endpoint in objects.all(ServiceEndpoint).values() if endpoint.subnet == item.name)
    for route in objects.all(NetworkRoute).values():
        if route.next_hop is not None and range_of(route.next_hop, item.cidrs):
            yield route


def _users_of_port(objects: VpcObjects, item: Port) -> Iterator[NetworkObject]:
    for balancer in objects.all(LoadBalancer).values():
        if item.name in balancer.ports or any(backend.port == item.name for backend in balancer.backends):
            yield balancer
    yield from (gateway for gateway in objects.all(NetworkGateway).values() if item.name in gateway.ports)
    yield from (rule for rule in objects.all(NatRule).values() if rule.port == item.name)
    yield from (port for port in objects.all(Port).values() if item.name in port.virtual_parents)


def endpoints_of(networks: NetworkObjects, item: LoadBalancer) -> Iterator[ServiceEndpoint]:
    """The endpoints of all VPCs that ask for this load balancer."""
    return (endpoint for endpoint in networks.all(ServiceEndpoint) if endpoint.source == item.name)


def foreign_users(networks: NetworkObjects, vpc: Vpc) -> Iterator[NetworkObject]:
    """What of other VPCs could not be as it is without this one."""
    for balancer in networks.of_vpc(vpc.name).all(LoadBalancer).values():
        yield from users(networks, balancer)


def made_for(objects: VpcObjects, item: NetworkObject) -> tuple[NetworkObject, ...]:
    """The companions of an object, those first that use others."""
    if not isinstance(item, LoadBalancer | NetworkGateway) or not item.ports:
        return ()
    group = objects.all(SecurityGroup)[f"{vpc_of(item.name)}/{companion_base(item)}"]
    return (*(objects.all(Port)[name] for name in reversed(item.ports)), group)


def goes_along(networks: NetworkObjects, item: NetworkObject) -> Iterator[NetworkObject]:
    """What other VPCs asked of ``item`` and does not stand: it goes when ``item`` goes, so that no later one of its name gets
    what was meant for it."""
    match item:
        case Vpc():
            asked = (f"{vpc}/{item.name}" for vpc in networks.vpcs)
            yield from filter(None, (networks.find(Peering, name) for name in asked))
            balancers = networks.of_vpc(item.name).all(LoadBalancer).values()
            yield from itertools.chain.from_iterable(endpoints_of(networks, balancer) for balancer in balancers)
        case LoadBalancer():
            yield from endpoints_of(networks, item)
