"""Managed objects: the platform creates them in a VPC together with an object of a user, and deletes them with it.

They are ordinary ports and security groups: the default group of a VPC, and the ports and the group of the two replicas
of an L7 load balancer or an NFV gateway.
"""

from __future__ import annotations

from msgspec.structs import replace

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
from calabash.net.checks.common import describe
from calabash.net.checks.subnets import ANYWHERE, default_group
from calabash.net.objects.collection import NetworkObjects, VpcObjects

REPLICAS = (1, 2)
VIRTUAL = "vip"
_ADDED_LENGTH = len("x-nfv-") + len(f"-{VIRTUAL}")


def managed_label(item: LoadBalancer | NetworkGateway) -> str:
    """Return the common prefix of the labels of the ports and groups that belong to a load balancer or gateway.

    For the load balancer ``web`` it is ``x-lb-web``, for the gateway ``out`` it is ``x-nfv-out``.
    """
    return f"x-{'lb' if isinstance(item, LoadBalancer) else 'nfv'}-{item.name.split('/')[1]}"


def check_managed_names(item: LoadBalancer | NetworkGateway) -> None:
    """Raise CalabashError if the name is too long to be part of the names of the managed objects."""
    if len(item.name.split("/")[1]) > NAME_LENGTH_MAX - _ADDED_LENGTH:
        raise CalabashError(
            f"{describe(item)}: the name is longer than {NAME_LENGTH_MAX - _ADDED_LENGTH} characters",
            hint="names of its ports contain it",
        )


def virtual_port(item: LoadBalancer | NetworkGateway, subnet: str) -> str:
    """Return the name of the port in a subnet whose address moves between the two replicas of an object."""
    return f"{subnet}/{managed_label(item)}-{VIRTUAL}"


def managed_objects(networks: NetworkObjects, item: NetworkObject) -> tuple[NetworkObject, ...]:
    """Return the objects that the platform creates with a new object, in the order in which they must be created."""
    match item:
        case Vpc():
            return (default_group(item.name),)
        case LoadBalancer(layer=Layer.L7):
            return _balancer_objects(networks.of_vpc(vpc_of(item.name)), item)
        case NetworkGateway(kind=GatewayKind.NFV):
            return _gateway_objects(networks.of_vpc(vpc_of(item.name)), item)
        case _:
            return ()


def _balancer_objects(objects: VpcObjects, item: LoadBalancer) -> tuple[NetworkObject, ...]:
    subnet = next(subnet for subnet in objects.all(Subnet).values() if range_of(item.vip, subnet.cidrs))
    number = item.vip_number
    service = tuple(
        SecurityRule(direction=Direction.INGRESS, protocol=TransportProtocol.TCP, ports=(number, number), peer=anywhere)
        for anywhere in ANYWHERE
    )
    name = f"{vpc_of(item.name)}/{managed_label(item)}"
    replicas = SecurityRule(direction=Direction.INGRESS, peer_group=name)
    egress = tuple(SecurityRule(direction=Direction.EGRESS, peer=anywhere) for anywhere in ANYWHERE)
    group = SecurityGroup(name=name, rules=(*service, replicas, *egress))
    groups = (
        default_group(vpc_of(item.name)).name,
        name,
    )  # a rule that admits the default group also admits the replicas
    return (group, *_replica_ports(item, subnet, groups, (item.vip,)))


def _gateway_objects(objects: VpcObjects, item: NetworkGateway) -> tuple[NetworkObject, ...]:
    subnets = sorted(objects.all(Subnet).values(), key=lambda subnet: subnet.number)
    subnet = next((subnet for subnet in subnets if any(cidr.version == 4 for cidr in subnet.cidrs)), None)
    if subnet is None:
        raise CalabashError(
            f"{describe(item)}: the VPC has no IPv4 subnet for the replicas",
            reason=Reason.NOT_FOUND,
            hint=f"calabash net subnet create {vpc_of(item.name)}/a --cidr 10.0.1.0/24",
        )
    rules = tuple(SecurityRule(direction=direction, peer=anywhere) for direction in Direction for anywhere in ANYWHERE)
    group = SecurityGroup(name=f"{vpc_of(item.name)}/{managed_label(item)}", rules=rules)
    return (group, *_replica_ports(item, subnet, (group.name,), ()))


def _replica_ports(
    item: LoadBalancer | NetworkGateway, subnet: Subnet, groups: tuple[str, ...], address: tuple[Address, ...]
) -> tuple[Port, ...]:
    names = tuple(f"{subnet.name}/{managed_label(item)}-{replica}" for replica in REPLICAS)
    virtual = Port(name=virtual_port(item, subnet.name), addresses=address, security_groups=groups)
    pair = (Port(name=name, security_groups=groups) for name in names)
    # The virtual port is created first, without parents, to reserve its address.
    return (virtual, *pair, replace(virtual, virtual_parents=names))
