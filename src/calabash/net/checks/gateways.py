"""Uplinks, gateways, outside addresses and NAT: the ways out of the platform, and back in."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from calabash.model.addresses import Address, check_label
from calabash.model.errors import CalabashError, Reason
from calabash.model.network import (
    DedicatedLine,
    Eip,
    GatewayKind,
    NatKind,
    NatRule,
    NetworkGateway,
    NetworkRoute,
    Port,
    Uplink,
    Vpc,
    vpc_of,
)
from calabash.model.network_services import LoadBalancer, TransportProtocol
from calabash.net.addresses.allocation import check_station, free_address, number_of, usable
from calabash.net.addresses.ranges import first_overlap
from calabash.net.checks.common import (
    NUMBER_MAX,
    check_between,
    check_distinct,
    check_fixed,
    check_usable,
    conflict,
    known,
    titled,
)
from calabash.net.checks.limits import HOSTS_PER_UPLINK, check_count
from calabash.net.checks.managed_objects import check_companion_names
from calabash.net.checks.reachability import check_new_reach
from calabash.net.objects.collection import NetworkObjects, VpcObjects

VLAN_MAX = 4094
# A multicast frame of the provider's network goes to the router of every VPC on the uplink: 38 lookups of Open vSwitch for each
# router, and 34 for the uplink. Open vSwitch drops a frame that takes more than 4096 (tests/net/test_uplink_multicast.py).
VPCS_PER_UPLINK_MAX = 100
UPLINKS_MAX = 255
PHYSICAL_LENGTH_MAX = 15
FORWARDED = (TransportProtocol.TCP, TransportProtocol.UDP)


def check_uplink(networks: NetworkObjects, item: Uplink, old: Uplink | None) -> Uplink:
    check_usable(item.cidr, titled(item))
    check_station(item.gateway, item.cidr, f"gateway of {titled(item)}")
    check_between(item.vlan, 0, VLAN_MAX, f"VLAN of {titled(item)}")
    check_segment(networks, item)
    if not 0 <= item.vpcs_max <= VPCS_PER_UPLINK_MAX:
        raise CalabashError(
            f"{titled(item)}: {item.vpcs_max} VPCs is not between 0 and {VPCS_PER_UPLINK_MAX}",
            hint="0 follows from the addresses of its range; more VPCs need another uplink, with a VLAN of its own",
        )
    others = [uplink for uplink in networks.uplinks().values() if uplink.name != item.name]
    for other in others:
        if first_overlap((item.cidr,), (other.cidr,)):
            raise conflict(f"{titled(item)}: {item.cidr} overlaps {other.cidr} of {titled(other)}")
    leaving = vpcs_of_uplinks(networks)[item.name]
    if leaving > vpcs_limit(item):
        raise conflict(
            f"{titled(item)}: {leaving} VPCs leave by it, more than {vpcs_limit(item)}", hint="delete gateways first"
        )
    taken = [uplink.number for uplink in others]
    item = replace(item, number=number_of(item.number, old.number if old else 0, taken, UPLINKS_MAX, titled(item)))
    check_fixed(item, old, "number", *(("cidr", "gateway") if leaving else ()))
    return item


def check_segment(networks: NetworkObjects, item: Uplink | DedicatedLine) -> None:
    """Raises CalabashError where the VLAN is another's, or hosts and their network are called as none can be."""
    check_label(item.physical, f"physical network of {titled(item)}")
    check_between(
        len(item.physical), 1, PHYSICAL_LENGTH_MAX, f"length of the physical network's name of {titled(item)}"
    )
    check_count(len(item.hosts), HOSTS_PER_UPLINK, f"hosts of {titled(item)}")
    check_distinct(item.hosts, f"hosts of {titled(item)}")
    for host in item.hosts:
        for label in host.split("."):
            check_label(label, f"host of {titled(item)}")
    segments: list[Uplink | DedicatedLine] = [*networks.uplinks().values(), *networks.all(DedicatedLine)]
    for other in segments:
        same = (other.physical, other.vlan) == (item.physical, item.vlan)
        if same and (type(other), other.name) != (type(item), item.name):
            raise conflict(
                f"{titled(item)}: VLAN {item.vlan} of {item.physical} is that of {titled(other)}",
                hint="each uplink and each line has a VLAN of its own",
            )


def vpcs_limit(uplink: Uplink) -> int:
    """Return how many VPCs can leave by an uplink: each has an address of its range, and the provider's router has one."""
    first, last = usable(uplink.cidr)
    return min(uplink.vpcs_max or VPCS_PER_UPLINK_MAX, last - first)


def _no_room(uplink: Uplink, item: NetworkGateway) -> CalabashError:
    """Build the error for a gateway whose uplink takes no more VPCs. It names what the limit follows from."""
    limit = vpcs_limit(uplink)
    raised = f"raises its limit with `calabash uplink set {uplink.name} --vpcs-max`, or adds an uplink"
    if limit == uplink.vpcs_max and limit < VPCS_PER_UPLINK_MAX:
        why, remedy = "its limit (vpcs_max)", raised
    elif limit < VPCS_PER_UPLINK_MAX:
        why, remedy = f"{uplink.cidr} has no more addresses for gateways", "adds an uplink with another range"
    else:
        why, remedy = "the most that any uplink takes", "adds an uplink"
    return CalabashError(
        f"{titled(item)}: {limit} VPCs leave by uplink {uplink.name}: {why}",
        reason=Reason.NO_CAPACITY,
        hint=f"leave the uplink out, and one with room is chosen; an administrator {remedy}",
    )


def vpcs_of_uplinks(networks: NetworkObjects) -> Counter[str]:
    """How many VPCs leave by each uplink."""
    return Counter(gateway.uplink for gateway in networks.all(NetworkGateway))


def check_gateway(networks: NetworkObjects, item: NetworkGateway, old: NetworkGateway | None) -> NetworkGateway:
    objects = networks.of_vpc(vpc_of(item.name))
    (vpc,) = objects.all(Vpc).values()
    if item.name in objects.all(Eip):
        raise conflict(f"{titled(item)}: an outside address is called the same", hint="choose another name")
    name = item.uplink or (old.uplink if old else "") or _chosen(networks, vpc, item)
    uplink = networks.uplinks().get(name)
    check_fixed(replace(item, uplink=name), old, "kind", "uplink")
    if uplink is None:
        raise CalabashError(f"{titled(item)}: there is no uplink {name[:100]!r}", reason=Reason.NOT_FOUND)
    if old is None and vpcs_of_uplinks(networks)[name] >= vpcs_limit(uplink):
        raise _no_room(uplink, item)
    check_new_reach(networks, vpc, item.name, (f"uplink {name} of {titled(item)}", (uplink.cidr,)))
    for route in objects.all(NetworkRoute).values():
        if route.source is None and route.prefix.prefixlen == 0 and route.prefix.version == uplink.cidr.version:
            raise conflict(f"{titled(item)}: {titled(route)} leads {route.prefix} elsewhere", hint="delete the route")
    if item.kind is GatewayKind.NFV:
        check_companion_names(item)
        if uplink.cidr.version != 4:
            raise CalabashError(
                f"{titled(item)}: NFV gateways translate IPv4, uplink {name} is {uplink.cidr}",
                reason=Reason.UNSUPPORTED,
            )
    address = _outside_address(networks, uplink, item, item.address or (old.address if old else None))
    ports = item.ports or (old.ports if old else ())
    item = replace(item, uplink=name, address=address, ports=ports)
    check_fixed(item, old, "address", "ports")
    return item


def _chosen(networks: NetworkObjects, vpc: Vpc, item: NetworkGateway) -> str:
    """The uplink that a new gateway gets: that of its address, or the one with the fewest VPCs."""
    leaving = vpcs_of_uplinks(networks)
    uplinks = list(networks.uplinks().values())
    if item.address is not None:
        uplinks = [uplink for uplink in uplinks if item.address in uplink.cidr]
        if not uplinks:
            raise CalabashError(f"{titled(item)}: {item.address} is of no uplink's range", reason=Reason.NOT_FOUND)
    free = [
        uplink
        for uplink in uplinks
        if leaving[uplink.name] < vpcs_limit(uplink) and not first_overlap(vpc.cidrs, (uplink.cidr,))
    ]
    if not free:
        raise CalabashError(
            f"{titled(item)}: none of {len(uplinks)} uplinks has room for another VPC: they take"
            f" {sum(map(vpcs_limit, uplinks))}, and {sum(leaving[uplink.name] for uplink in uplinks)} leave by them",
            reason=Reason.NO_CAPACITY,
            hint="an administrator adds one with `calabash uplink create`, or raises the limit of one with"
            f" `calabash uplink set UPLINK --vpcs-max`, up to {VPCS_PER_UPLINK_MAX}",
        )
    return min(free, key=lambda uplink: (leaving[uplink.name], uplink.number)).name


def gateway_of(objects: VpcObjects, whose: str) -> NetworkGateway:
    """The VPC's gateway. Raises CalabashError where it has none."""
    for gateway in objects.all(NetworkGateway).values():
        return gateway
    vpc = whose.rsplit(" ", 1)[-1].split("/", 1)[0]
    raise CalabashError(
        f"{whose}: its VPC has no gateway",
        reason=Reason.NOT_FOUND,
        hint=f"calabash gateway create {vpc}/out --snat",
    )


def check_eip(networks: NetworkObjects, item: Eip, old: Eip | None) -> Eip:
    objects = networks.of_vpc(vpc_of(item.name))
    gateway = gateway_of(objects, titled(item))
    if gateway.name == item.name:
        raise conflict(f"{titled(item)}: the gateway is called the same", hint="choose another name")
    uplink = networks.uplinks()[gateway.uplink]
    item = replace(
        item, address=_outside_address(networks, uplink, item, item.address or (old.address if old else None))
    )
    check_fixed(item, old, "address")
    return item


def _outside_address(
    networks: NetworkObjects, uplink: Uplink, item: NetworkGateway | Eip, asked: Address | None
) -> Address:
    taken: dict[int, NetworkGateway | Eip] = {}
    holders: list[NetworkGateway | Eip] = [*networks.all(NetworkGateway), *networks.all(Eip)]
    for other in holders:
        if other.address is not None and (type(other), other.name) != (type(item), item.name):
            taken[int(other.address)] = other
    if asked is None:
        return free_address(uplink.cidr, lambda number: number in taken or number == int(uplink.gateway), titled(item))
    check_station(asked, uplink.cidr, titled(item))
    if asked == uplink.gateway:
        raise conflict(f"{titled(item)}: {asked} is the router of uplink {uplink.name}")
    if (holder := taken.get(int(asked))) is not None:
        own = vpc_of(holder.name) == vpc_of(item.name)
        by = titled(holder) if own else "another VPC"
        raise conflict(f"{titled(item)}: {asked} is taken by {by}", hint="leave the address out, and one is chosen")
    return asked


def check_nat(networks: NetworkObjects, item: NatRule, old: NatRule | None) -> NatRule:
    objects = networks.of_vpc(vpc_of(item.name))
    gateway = gateway_of(objects, titled(item))
    port = known(objects, Port, item.port, titled(item))
    own = item.eip == gateway.name
    address = gateway.address if own else known(objects, Eip, item.eip, titled(item)).address
    if address is None or not any(inside.version == address.version for inside in port.addresses):
        raise CalabashError(f"{titled(item)}: port {port.name} has no address of the version of {address}")
    if item.kind is NatKind.FIP:
        if own:
            raise CalabashError(f"{titled(item)}: {item.eip} is the gateway's", hint="a floating address is an EIP's")
        if item.protocol is not TransportProtocol.ANY or item.outside_number or item.inside_number:
            raise CalabashError(f"{titled(item)}: a floating address has all protocols and numbers", hint="or use dnat")
        if item.distributed and gateway.kind is GatewayKind.NFV:
            raise CalabashError(f"{titled(item)}: with an NFV gateway no host translates itself")
    else:
        if item.protocol not in FORWARDED or item.distributed:
            raise CalabashError(f"{titled(item)}: forwards tcp or udp, at the gateway")
        check_between(item.outside_number, 1, NUMBER_MAX, f"outside number of {titled(item)}")
        check_between(item.inside_number, 1, NUMBER_MAX, f"inside number of {titled(item)}")
    _check_nat_apart(objects, item, address)
    check_fixed(item, old, "kind")
    return item


def _check_nat_apart(objects: VpcObjects, item: NatRule, address: Address) -> None:
    for other in objects.all(NatRule).values():
        if other.name == item.name:
            continue
        both = item.kind is other.kind is NatKind.FIP
        numbers = (other.protocol, other.outside_number) == (item.protocol, item.outside_number)
        if other.eip == item.eip and (NatKind.FIP in (item.kind, other.kind) or numbers):
            raise conflict(f"{titled(item)}: {item.eip} is in use by {titled(other)}")
        if both and other.port == item.port:
            raise conflict(f"{titled(item)}: port {item.port} has the floating address of {titled(other)}")
    for balancer in objects.all(LoadBalancer).values():
        numbers = (balancer.protocol, balancer.vip_number) == (item.protocol, item.outside_number)
        if balancer.vip == address and (item.kind is NatKind.FIP or numbers):
            raise conflict(f"{titled(item)}: {item.eip} is in use by {titled(balancer)}")
