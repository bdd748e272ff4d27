"""Checks of VPCs and subnets."""

from __future__ import annotations

from ipaddress import ip_network

from msgspec.structs import replace

from calabash.model.addresses import Address, Network, overlapping
from calabash.model.errors import CalabashError
from calabash.model.network import Direction, SecurityGroup, SecurityRule, Subnet, Vpc, vpc_of
from calabash.net.addresses.allocation import allocated_number, check_host_address, host_range
from calabash.net.addresses.ranges import first_overlap, is_within
from calabash.net.checks.common import (
    NUMBER_MAX,
    check_allowed_range,
    check_between,
    check_distinct,
    check_immutable,
    conflict_error,
    describe,
    join_ranges,
)
from calabash.net.checks.limits import CIDRS_PER_VPC, check_count
from calabash.net.checks.reachability import check_vpc_ranges
from calabash.net.objects.collection import NetworkObjects

MTU_MIN, MTU_MIN_6, MTU_MAX = 576, 1280, 9000
PREFIX_MIN = {4: 8, 6: 32}
PREFIX_MAX = {4: 30, 6: 124}
DEFAULT_GROUP = "default"
ANYWHERE: tuple[Network, ...] = (ip_network("0.0.0.0/0"), ip_network("::/0"))


def check_vpc(networks: NetworkObjects, item: Vpc, old: Vpc | None) -> Vpc:
    """Check the ranges and MTU of a VPC against its subnets and the networks that it reaches; allocate its number.

    Raises:
        CalabashError: the object is invalid or conflicts with another one.
    """
    if not item.cidrs:
        raise CalabashError(f"{describe(item)} needs a range", hint="add one, such as 10.0.0.0/16")
    check_count(len(item.cidrs), CIDRS_PER_VPC, f"ranges of {describe(item)}")
    for cidr in item.cidrs:
        check_allowed_range(cidr, describe(item))
        _check_prefix(cidr, describe(item))
    check_disjoint(item.cidrs, describe(item))
    least = MTU_MIN_6 if any(cidr.version == 6 for cidr in item.cidrs) else MTU_MIN
    check_between(item.mtu_bytes, least, MTU_MAX, f"MTU of {describe(item)}, bytes")
    for subnet in networks.of_vpc(item.name).all(Subnet).values():
        if outside := next((cidr for cidr in subnet.cidrs if not is_within(cidr, item.cidrs)), None):
            raise conflict_error(f"{describe(item)} must keep {outside}, the range of {describe(subnet)}")
    check_vpc_ranges(networks, item)
    taken = {vpc.number for vpc in networks.all(Vpc)} if old is None or item.number != old.number else ()
    number = allocated_number(item.number, old.number if old else 0, taken, NUMBER_MAX, describe(item))
    item = replace(item, number=number)
    check_immutable(item, old, "tenant", "number")
    return item


def default_group(vpc: str) -> SecurityGroup:
    """Build the default group of a VPC: admits traffic between its ports and all outgoing traffic."""
    name = f"{vpc}/{DEFAULT_GROUP}"
    inside = SecurityRule(direction=Direction.INGRESS, peer_group=name)
    outside = tuple(SecurityRule(direction=Direction.EGRESS, peer=anywhere) for anywhere in ANYWHERE)
    return SecurityGroup(name=name, rules=(inside, *outside))


def check_subnet(networks: NetworkObjects, item: Subnet, old: Subnet | None) -> Subnet:
    """Check a subnet: its ranges lie in the VPC and overlap no other subnet; complete its gateways and number.

    Raises:
        CalabashError: the object is invalid or conflicts with another one.
    """
    objects = networks.of_vpc(vpc_of(item.name))
    (vpc,) = objects.all(Vpc).values()
    if not item.cidrs:
        raise CalabashError(f"{describe(item)} needs a range", hint=f"use one within {join_ranges(vpc.cidrs)}")
    check_distinct((f"a range of IPv{cidr.version}" for cidr in item.cidrs), describe(item))
    for cidr in item.cidrs:
        if not is_within(cidr, vpc.cidrs):
            raise CalabashError(
                f"{describe(item)}: {cidr} is not within {join_ranges(vpc.cidrs)} of its VPC",
                hint=f"use a range within these, or add a range to VPC {vpc.name}",
            )
        _check_prefix(cidr, describe(item))
    others = {name: other for name, other in objects.all(Subnet).items() if name != item.name}
    for other in others.values():
        if shared := first_overlap(item.cidrs, other.cidrs):
            raise conflict_error(f"{describe(item)}: {shared[0]} overlaps {shared[1]} of {describe(other)}")
    gateways = tuple(_gateway(item, cidr) for cidr in item.cidrs)
    if foreign := set(item.gateways) - set(gateways):
        raise CalabashError(f"{describe(item)}: gateway {min(map(str, foreign))} is not in {join_ranges(item.cidrs)}")
    taken = {other.number for other in others.values()}
    number = allocated_number(item.number, old.number if old else 0, taken, NUMBER_MAX, describe(item))
    if old is not None and not item.gateways:
        gateways = old.gateways
    item = replace(item, gateways=gateways, number=number)
    check_immutable(item, old, "cidrs", "gateways", "number")
    return item


def check_disjoint(networks: tuple[Network, ...], subject: str) -> None:
    """Raise CalabashError if two of the ranges overlap; ``subject`` names the object in the message."""
    if shared := overlapping(networks):
        raise CalabashError(f"{subject}: {shared[0]} and {shared[1]} overlap")


def _gateway(subnet: Subnet, cidr: Network) -> Address:
    """Return the address of the router in one range of the subnet: the requested one, else the first of the range."""
    asked = [address for address in subnet.gateways if address.version == cidr.version]
    if len(asked) > 1:
        raise CalabashError(f"{describe(subnet)}: two gateways in {cidr}, {asked[0]} and {asked[1]}")
    gateway = asked[0] if asked else cidr[host_range(cidr)[0] - int(cidr.network_address)]
    check_host_address(gateway, cidr, f"gateway of {describe(subnet)}")
    return gateway


def _check_prefix(cidr: Network, subject: str) -> None:
    least, most = PREFIX_MIN[cidr.version], PREFIX_MAX[cidr.version]
    if not least <= cidr.prefixlen <= most:
        raise CalabashError(f"{subject}: prefix length of {cidr} is not between /{least} and /{most}")
