"""Checks of peerings, dedicated lines and routes."""

from __future__ import annotations

from ipaddress import IPv4Network, IPv6Network

from msgspec.structs import replace

from calabash.model.addresses import Address
from calabash.model.errors import CalabashError, Reason
from calabash.model.network import (
    DedicatedLine,
    NetworkGateway,
    NetworkRoute,
    Peering,
    Subnet,
    Vpc,
    vpc_of,
)
from calabash.net.addresses.allocation import allocated_number, check_host_address
from calabash.net.addresses.derived import TRANSIT_4, TRANSIT_6
from calabash.net.addresses.ranges import first_overlap, is_within, range_of
from calabash.net.checks.common import (
    check_allowed_range,
    check_between,
    check_immutable,
    conflict_error,
    describe,
    join_ranges,
)
from calabash.net.checks.gateways import VLAN_MAX, check_segment
from calabash.net.checks.limits import ROUTES_PER_PEER, check_count
from calabash.net.checks.reachability import check_new_destination, check_peer_destinations, line_ranges
from calabash.net.checks.subnets import check_disjoint
from calabash.net.objects.acceptance import peering_ranges, reverse_name
from calabash.net.objects.collection import NetworkObjects, VpcObjects

PEERINGS_MAX = LINES_MAX = 4095
PRIORITY_MAX = 1000


def check_peering(networks: NetworkObjects, item: Peering, old: Peering | None) -> Peering:
    """Check a peering and allocate its number, which it shares with the peering in the opposite direction.

    Raises:
        CalabashError: the object is invalid or conflicts with another one.
    """
    own_name, other_name = item.name.split("/")
    own, other = networks.find(Vpc, own_name), networks.find(Vpc, other_name)
    if own is None or other is None:
        raise CalabashError(f"{describe(item)}: VPC {other_name} does not exist", reason=Reason.NOT_FOUND)
    if own is other:
        raise CalabashError(f"{describe(item)}: a VPC cannot be a peer of itself")
    check_count(len(item.routes), ROUTES_PER_PEER, f"routes of {describe(item)}")
    check_disjoint(item.routes, describe(item))
    back = networks.find(Peering, reverse_name(item.name))
    if shared := first_overlap(item.routes, own.cidrs):
        raise conflict_error(f"{describe(item)}: {shared[0]} overlaps {shared[1]} of its own VPC")
    if back is not None or own.tenant == other.tenant:
        _check_peer_ranges(item, own, other)
    if back is not None:
        check_new_destination(networks, own, item.name, (describe(item), peering_ranges(item, other)))
        check_peer_destinations(networks, other, back.name, (describe(item), peering_ranges(back, own)))
    was = old.number if old else back.number if back else 0
    numbers = {peering.number for peering in networks.all(Peering) if peering not in (item, old, back)}
    number = allocated_number(item.number, was, numbers, PEERINGS_MAX, describe(item))
    if was and number != was:
        raise conflict_error(
            f"{describe(item)}: the number is {was}, as in the opposite direction", hint="leave the number out"
        )
    return replace(item, number=number)


def _check_peer_ranges(item: Peering, own: Vpc, other: Vpc) -> None:
    """Raise CalabashError if the VPCs' ranges overlap, or a route of the peering is outside of the peer's ranges.

    The messages contain the peer's ranges. Therefore this function is called only if the peer has requested the peering
    too, or if both VPCs belong to the same tenant.
    """
    if shared := first_overlap(own.cidrs, other.cidrs):
        raise conflict_error(
            f"{describe(item)}: {shared[0]} of VPC {own.name} overlaps {shared[1]} of VPC {other.name}",
            hint=f"create an endpoint for one service: calabash net endpoint create {own.name}/NAME --balancer {other.name}/LB",
        )
    if foreign := next((route for route in item.routes if not is_within(route, other.cidrs)), None):
        raise CalabashError(f"{describe(item)}: {foreign} is not within {join_ranges(other.cidrs)} of VPC {other.name}")


def check_line(networks: NetworkObjects, item: DedicatedLine, old: DedicatedLine | None) -> DedicatedLine:
    """Check a dedicated line: VLAN, ranges, both addresses, and routes that use it; allocate its number.

    Raises:
        CalabashError: the object is invalid or conflicts with another one.
    """
    (vpc,) = networks.of_vpc(vpc_of(item.name)).all(Vpc).values()
    check_between(item.vlan, 1, VLAN_MAX, f"VLAN of {describe(item)}")
    check_segment(networks, item)
    check_count(len(item.routes), ROUTES_PER_PEER, f"routes of {describe(item)}")
    for network in line_ranges(item):
        if network.prefixlen == 0 or network.prefixlen > network.max_prefixlen - (network == item.cidr):
            raise CalabashError(
                f"{describe(item)}: {network} is not a valid range of a line", hint="use a route for 0.0.0.0/0"
            )
        check_allowed_range(network, describe(item))
    check_disjoint(line_ranges(item), describe(item))
    check_host_address(item.address, item.cidr, f"address of {describe(item)}")
    check_host_address(item.peer, item.cidr, f"peer address of {describe(item)}")
    if item.address == item.peer:
        raise CalabashError(f"{describe(item)}: address and peer are both {item.peer}")
    if versions := {network.version for network in item.routes} - {item.cidr.version}:
        raise CalabashError(
            f"{describe(item)}: IPv{versions.pop()} routes need a peer of that IP version, not {item.peer}"
        )
    check_new_destination(networks, vpc, item.name, (describe(item), line_ranges(item)))
    if old is not None:
        _check_next_hops_remain(networks.of_vpc(vpc.name), item, old)
    numbers = {line.number for line in networks.all(DedicatedLine) if line.name != item.name}
    item = replace(
        item, number=allocated_number(item.number, old.number if old else 0, numbers, LINES_MAX, describe(item))
    )
    check_immutable(item, old, "number")
    return item


def _check_next_hops_remain(objects: VpcObjects, item: DedicatedLine, old: DedicatedLine) -> None:
    for route in objects.all(NetworkRoute).values():
        hop = route.next_hop
        if hop is not None and hop in old.cidr and (hop not in item.cidr or hop == item.address):
            raise conflict_error(
                f"{describe(item)}: {describe(route)} uses its address {hop} as next hop", hint="delete the route first"
            )


def check_route(networks: NetworkObjects, item: NetworkRoute, _old: NetworkRoute | None) -> NetworkRoute:
    """Check the IP versions and next hop of a route, and that no other route or gateway matches the same packets.

    Raises:
        CalabashError: the object is invalid or conflicts with another one.
    """
    objects = networks.of_vpc(vpc_of(item.name))
    check_between(item.priority, 1, PRIORITY_MAX, f"priority of {describe(item)}")
    for what in (item.next_hop, item.source):
        if what is not None and what.version != item.prefix.version:
            raise CalabashError(f"{describe(item)}: {what} and {item.prefix} have different IP versions")
    if is_within(item.prefix, (TRANSIT_4, TRANSIT_6)):
        raise CalabashError(f"{describe(item)}: {item.prefix} is reserved for links between routers")
    if item.next_hop is not None:
        _check_next_hop(objects, item, item.next_hop)
    for other in objects.all(NetworkRoute).values():
        if other.name != item.name and _match_key(other) == _match_key(item):
            raise conflict_error(
                f"{describe(item)}: {describe(other)} matches the same packets", hint="change that route"
            )
    if item.source is None:
        _check_static(networks, objects, item)
    return item


def _check_static(networks: NetworkObjects, objects: VpcObjects, item: NetworkRoute) -> None:
    for gateway in objects.all(NetworkGateway).values():
        uplink = networks.uplinks()[gateway.uplink]
        if item.prefix.prefixlen == 0 and uplink.cidr.version == item.prefix.version:
            raise conflict_error(
                f"{describe(item)}: {describe(gateway)} is already the default route {item.prefix}",
                hint="give the route a source; such routes take precedence",
            )
    for subnet in objects.all(Subnet).values():
        if is_within(item.prefix, subnet.cidrs):
            raise conflict_error(f"{describe(item)}: {item.prefix} is in subnet {subnet.name}, which needs no route")


def _check_next_hop(objects: VpcObjects, item: NetworkRoute, hop: Address) -> None:
    for subnet in objects.all(Subnet).values():
        if (cidr := range_of(hop, subnet.cidrs)) is not None:
            check_host_address(hop, cidr, f"next hop of {describe(item)}")
            if hop in subnet.gateways:
                raise CalabashError(f"{describe(item)}: {hop} is the address of the router itself")
            return
    for line in objects.all(DedicatedLine).values():
        if hop in line.cidr:
            check_host_address(hop, line.cidr, f"next hop of {describe(item)}")
            if hop == line.address:
                raise CalabashError(f"{describe(item)}: {hop} is the address of the router itself")
            return
    raise CalabashError(
        f"{describe(item)}: next hop {hop} is in no subnet or line of the VPC",
        reason=Reason.NOT_FOUND,
        hint="use an address in a subnet or a line of the VPC",
    )


def _match_key(route: NetworkRoute) -> tuple[int, IPv4Network | IPv6Network | None, IPv4Network | IPv6Network]:
    """Return a key that two routes share if they match the same packets: priority, source and destination.

    The priority of a route without a source is 0.
    """
    return route.priority if route.source is not None else 0, route.source, route.prefix
