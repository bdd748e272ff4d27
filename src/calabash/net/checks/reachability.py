"""Checks that the address ranges which a VPC reaches do not overlap.

These are the VPC's own ranges and those of its peers, its dedicated lines and its uplink. If two of these ranges had a
common address, the router could not decide where to send a packet for it.
"""

from __future__ import annotations

from collections.abc import Iterator

from calabash.model.addresses import Network
from calabash.model.network import DedicatedLine, NetworkGateway, Vpc
from calabash.net.addresses.ranges import first_overlap
from calabash.net.checks.common import conflict_error, describe
from calabash.net.objects.acceptance import accepted_peerings, peering_ranges
from calabash.net.objects.collection import NetworkObjects

Destination = tuple[str, tuple[Network, ...]]  # description of the destination, and its ranges


def line_ranges(line: DedicatedLine) -> tuple[Network, ...]:
    return line.cidr, *line.routes


def destinations(networks: NetworkObjects, vpc: str, *, without: str = "") -> Iterator[Destination]:
    """Yield the destinations that a VPC reaches: dedicated lines, the uplink, and peers, each with its ranges.

    Args:
        without: name of a line, gateway or peering whose destination is left out; "" to leave out none.
    """
    objects = networks.of_vpc(vpc)
    for line in objects.all(DedicatedLine).values():
        if line.name != without:
            yield describe(line), line_ranges(line)
    for gateway in objects.all(NetworkGateway).values():
        uplink = networks.uplinks().get(gateway.uplink)
        if uplink is not None and gateway.name != without:
            yield f"uplink {uplink.name}", (uplink.cidr,)
    for peering, other in accepted_peerings(networks, vpc):
        if peering.name != without:
            yield f"peer {other.name}", peering_ranges(peering, other)


def check_new_destination(networks: NetworkObjects, vpc: Vpc, name: str, new: Destination) -> None:
    """Raise CalabashError if a new destination overlaps one that the VPC reaches already.

    Args:
        name: the object that adds the destination; its current ranges are ignored.
    """
    for what, ranges in ((describe(vpc), vpc.cidrs), *destinations(networks, vpc.name, without=name)):
        if shared := first_overlap(new[1], ranges):
            raise conflict_error(
                f"{new[0]}: {shared[0]} overlaps {shared[1]} of {what}", hint="use ranges that do not overlap"
            )


def check_peer_destinations(networks: NetworkObjects, peer: Vpc, name: str, new: Destination) -> None:
    """Raise CalabashError if a new destination overlaps one that the VPC ``peer`` reaches already.

    The message does not name the destination, which may belong to another tenant.
    """
    for _, ranges in destinations(networks, peer.name, without=name):
        if shared := first_overlap(new[1], ranges):
            raise conflict_error(f"{new[0]}: {shared[0]} overlaps another destination of VPC {peer.name}")


def check_vpc_ranges(networks: NetworkObjects, vpc: Vpc) -> None:
    """Raise CalabashError if a range of a changed VPC overlaps a range that the VPC or one of its peers reaches."""
    for what, ranges in destinations(networks, vpc.name):
        if shared := first_overlap(vpc.cidrs, ranges):
            raise conflict_error(f"{describe(vpc)}: {shared[0]} overlaps {shared[1]} of {what}")
    for peering, other in accepted_peerings(networks, vpc.name):
        back = f"{other.name}/{vpc.name}"
        theirs = networks.of_vpc(other.name).all(type(peering))[back]
        if theirs.routes:
            continue  # the peer reaches the ranges of its routes only
        check_peer_destinations(networks, other, back, (describe(vpc), vpc.cidrs))
