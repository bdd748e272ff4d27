"""What the platform puts inside a VPC for an object: the group that a VPC begins with, and ports and a group for the pair of
programs of an L7 load balancer or an NFV gateway. They are ordinary ports and groups, and go with the object."""

from __future__ import annotations

from dataclasses import replace

from calabash.model.addresses import NAME_LENGTH_MAX, Address
from calabash.model.errors import CalabashError, Reason
from calabash.model.network import (
    Direction,
    GatewayKind,
    NetworkGateway,
    NetworkObject,
    Port,
    SecurityGroup,
    SecurityRule,
    Subnet,
    Vpc,
    vpc_of,
)
from calabash.model.network_services import Layer, LoadBalancer, TransportProtocol
from calabash.net.addresses.ranges import range_of
from calabash.net.checks.common import titled
from calabash.net.checks.subnets import ANYBODY, default_group
from calabash.net.objects.collection import NetworkObjects, VpcObjects

REPLICAS = (1, 2)
VIRTUAL = "vip"
_LONGEST = len("x-nfv-") + len(f"-{VIRTUAL}")


def companion_base(item: LoadBalancer | NetworkGateway) -> str:
    """How the labels of an object's companions begin: ``x-lb-web``, ``x-nfv-out``."""
    return f"x-{'lb' if isinstance(item, LoadBalancer) else 'nfv'}-{item.name.split('/')[1]}"


def check_companion_names(item: LoadBalancer | NetworkGateway) -> None:
    """Raises CalabashError where its name is too long for those of its companions."""
    if len(item.name.split("/")[1]) > NAME_LENGTH_MAX - _LONGEST:
        raise CalabashError(
            f"{titled(item)}: its name has more than {NAME_LENGTH_MAX - _LONGEST} letters, with which its ports begin"
        )


def virtual_port(item: LoadBalancer | NetworkGateway, subnet: str) -> str:
    """The port whose address moves between the two: of an L7 load balancer its own."""
    return f"{subnet}/{companion_base(item)}-{VIRTUAL}"


def companions(networks: NetworkObjects, item: NetworkObject) -> tuple[NetworkObject, ...]:
    """What is to be put with a new object, in order."""
    match item:
        case Vpc():
            return (default_group(item.name),)
        case LoadBalancer(layer=Layer.L7):
            return _of_balancer(networks.of_vpc(vpc_of(item.name)), item)
        case NetworkGateway(kind=GatewayKind.NFV):
            return _of_gateway(networks.of_vpc(vpc_of(item.name)), item)
        case _:
            return ()


def _of_balancer(objects: VpcObjects, item: LoadBalancer) -> tuple[NetworkObject, ...]:
    subnet = next(subnet for subnet in objects.all(Subnet).values() if range_of(item.vip, subnet.cidrs))
    number = item.vip_number
    served = tuple(
        SecurityRule(direction=Direction.INGRESS, protocol=TransportProtocol.TCP, ports=(number, number), peer=anybody)
        for anybody in ANYBODY
    )
    name = f"{vpc_of(item.name)}/{companion_base(item)}"
    between = SecurityRule(direction=Direction.INGRESS, peer_group=name)
    outwards = tuple(SecurityRule(direction=Direction.EGRESS, peer=anybody) for anybody in ANYBODY)
    group = SecurityGroup(name=name, rules=(*served, between, *outwards))
    groups = (default_group(vpc_of(item.name)).name, name)  # what lets its own kind in lets the pair in
    return (group, *_pair(item, subnet, groups, (item.vip,)))


def _of_gateway(objects: VpcObjects, item: NetworkGateway) -> tuple[NetworkObject, ...]:
    subnets = sorted(objects.all(Subnet).values(), key=lambda subnet: subnet.number)
    subnet = next((subnet for subnet in subnets if any(cidr.version == 4 for cidr in subnet.cidrs)), None)
    if subnet is None:
        raise CalabashError(
            f"{titled(item)}: its VPC has no subnet of IPv4 for its replicas",
            reason=Reason.NOT_FOUND,
            hint=f"calabash subnet create {vpc_of(item.name)}/a --cidr 10.0.1.0/24",
        )
    rules = tuple(SecurityRule(direction=direction, peer=anybody) for direction in Direction for anybody in ANYBODY)
    group = SecurityGroup(name=f"{vpc_of(item.name)}/{companion_base(item)}", rules=rules)
    return (group, *_pair(item, subnet, (group.name,), ()))


def _pair(
    item: LoadBalancer | NetworkGateway, subnet: Subnet, groups: tuple[str, ...], address: tuple[Address, ...]
) -> tuple[Port, ...]:
    names = tuple(f"{subnet.name}/{companion_base(item)}-{replica}" for replica in REPLICAS)
    virtual = Port(name=virtual_port(item, subnet.name), addresses=address, security_groups=groups)
    pair = (Port(name=name, security_groups=groups) for name in names)
    return (
        virtual,
        *pair,
        replace(virtual, virtual_parents=names),
    )  # first by itself, so that nobody else gets its address
