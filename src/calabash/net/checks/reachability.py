"""What a VPC reaches beyond itself: peers, lines, its uplink. No two of these, nor its own ranges, may overlap, as an
address would then lead to two places."""

from __future__ import annotations

from collections.abc import Iterator

from calabash.model.addresses import Network
from calabash.model.network import DedicatedLine, NetworkGateway, Vpc
from calabash.net.addresses.ranges import first_overlap
from calabash.net.checks.common import conflict, titled
from calabash.net.objects.acceptance import peered, peered_ranges
from calabash.net.objects.collection import NetworkObjects

Reach = tuple[str, tuple[Network, ...]]  # of whom, and which ranges


def line_ranges(line: DedicatedLine) -> tuple[Network, ...]:
    return line.cidr, *line.routes


def reached(networks: NetworkObjects, vpc: str, *, without: str = "") -> Iterator[Reach]:
    """All that a VPC reaches; ``without`` the line, gateway or peering of this name."""
    objects = networks.of_vpc(vpc)
    for line in objects.all(DedicatedLine).values():
        if line.name != without:
            yield titled(line), line_ranges(line)
    for gateway in objects.all(NetworkGateway).values():
        uplink = networks.uplinks().get(gateway.uplink)
        if uplink is not None and gateway.name != without:
            yield f"uplink {uplink.name}", (uplink.cidr,)
    for peering, other in peered(networks, vpc):
        if peering.name != without:
            yield f"its peer {other.name}", peered_ranges(peering, other)


def check_new_reach(networks: NetworkObjects, vpc: Vpc, name: str, new: Reach) -> None:
    """Raises CalabashError where ``new``, which the object ``name`` gives the VPC, overlaps what it has already."""
    for what, ranges in ((titled(vpc), vpc.cidrs), *reached(networks, vpc.name, without=name)):
        if shared := first_overlap(new[1], ranges):
            raise conflict(f"{new[0]}: {shared[0]} overlaps {shared[1]} of {what}", hint="use ranges that differ")


def check_peers_reach(networks: NetworkObjects, peer: Vpc, name: str, new: Reach) -> None:
    """The same of a peer, of whom nobody learns whom else it reaches."""
    for _, ranges in reached(networks, peer.name, without=name):
        if shared := first_overlap(new[1], ranges):
            raise conflict(f"{new[0]}: {shared[0]} overlaps what VPC {peer.name} reaches elsewhere")


def check_reach(networks: NetworkObjects, vpc: Vpc) -> None:
    """Raises CalabashError where the VPC's ranges, as they would be, overlap what it or a peer of it reaches."""
    for what, ranges in reached(networks, vpc.name):
        if shared := first_overlap(vpc.cidrs, ranges):
            raise conflict(f"{titled(vpc)}: {shared[0]} overlaps {shared[1]} of {what}")
    for peering, other in peered(networks, vpc.name):
        back = f"{other.name}/{vpc.name}"
        theirs = networks.of_vpc(other.name).all(type(peering))[back]
        if theirs.routes:
            continue  # it reaches what it named, whatever ranges this VPC has besides
        check_peers_reach(networks, other, back, (titled(vpc), vpc.cidrs))
