"""Who uses whom: why something cannot be deleted."""

from __future__ import annotations

from collections.abc import Iterator

from calabash.model.network import (
    NetworkObject,
    Port,
    QosPolicy,
    SecurityGroup,
    Subnet,
    Vpc,
    vpc_of,
)
from calabash.net.checks.spaces import DEFAULT_GROUP
from calabash.net.checks.stations import subnet_of
from calabash.net.objects import NetworkObjects, VpcObjects


def users(networks: NetworkObjects, item: NetworkObject) -> Iterator[NetworkObject]:
    """What could not be as it is without ``item``, in its VPC and beyond."""
    objects = networks.of_vpc(vpc_of(item.name))
    match item:
        case Vpc():
            kept = f"{item.name}/{DEFAULT_GROUP}"
            yield from (other for other in objects if other is not item and other.name != kept)
        case Subnet():
            yield from (port for port in objects.all(Port).values() if subnet_of(port.name) == item.name)
        case Port():
            yield from _users_of_port(objects, item)
        case SecurityGroup():
            yield from (port for port in objects.all(Port).values() if item.name in port.security_groups)
            for group in objects.all(SecurityGroup).values():
                if group.name != item.name and any(rule.peer_group == item.name for rule in group.rules):
                    yield group
        case QosPolicy():
            yield from (port for port in objects.all(Port).values() if port.qos == item.name)


def _users_of_port(objects: VpcObjects, item: Port) -> Iterator[NetworkObject]:
    yield from (port for port in objects.all(Port).values() if item.name in port.virtual_parents)
