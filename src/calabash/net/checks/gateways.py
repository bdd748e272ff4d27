"""Checks of uplinks, gateways, outside addresses (EIPs) and NAT rules."""

from __future__ import annotations

from collections import Counter

from msgspec.structs import replace

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
from calabash.net.addresses.allocation import allocated_number, check_host_address, free_address, host_range
from calabash.net.addresses.ranges import first_overlap
from calabash.net.checks.common import (
    NUMBER_MAX,
    check_allowed_range,
    check_between,
    check_distinct,
    check_immutable,
    conflict_error,
    describe,
    require_object,
)
from calabash.net.checks.limits import HOSTS_PER_UPLINK, check_count
from calabash.net.checks.managed_objects import check_managed_names
from calabash.net.checks.reachability import check_new_destination
from calabash.net.objects.collection import NetworkObjects, VpcObjects

VLAN_MAX = 4094
# A multicast frame of the provider's network is copied to the router of every VPC on the uplink. It takes 38 flow lookups for
# each router and 34 for the uplink; Open vSwitch drops a frame that takes more than 4096 (tests/net/test_uplink_multicast.py).
VPCS_PER_UPLINK_MAX = 100
UPLINKS_MAX = 255
PHYSICAL_LENGTH_MAX = 15
FORWARDED = (TransportProtocol.TCP, TransportProtocol.UDP)


def check_uplink(networks: NetworkObjects, item: Uplink, old: Uplink | None) -> Uplink:
    """Check an uplink: range, VLAN, number of VPCs, and overlap with other uplinks.

    Raises:
        CalabashError: the object is invalid or conflicts with another one.
    """
    check_allowed_range(item.cidr, describe(item))
    check_host_address(item.gateway, item.cidr, f"gateway of {describe(item)}")
    check_between(item.vlan, 0, VLAN_MAX, f"VLAN of {describe(item)}")
    check_segment(networks, item)
    if not 0 <= item.vpcs_max <= VPCS_PER_UPLINK_MAX:
        raise CalabashError(
            f"{describe(item)}: {item.vpcs_max} VPCs is not between 0 and {VPCS_PER_UPLINK_MAX}",
            hint="0 derives the limit from the range; for more VPCs, create another uplink with another VLAN",
        )
    others = [uplink for uplink in networks.uplinks().values() if uplink.name != item.name]
    for other in others:
        if first_overlap((item.cidr,), (other.cidr,)):
            raise conflict_error(f"{describe(item)}: {item.cidr} overlaps {other.cidr} of {describe(other)}")
    leaving = vpcs_of_uplinks(networks)[item.name]
    if leaving > vpcs_limit(item):
        raise conflict_error(
            f"{describe(item)}: used by {leaving} VPCs, the limit is {vpcs_limit(item)}", hint="delete gateways first"
        )
    taken = [uplink.number for uplink in others]
    item = replace(
        item, number=allocated_number(item.number, old.number if old else 0, taken, UPLINKS_MAX, describe(item))
    )
    check_immutable(item, old, "number", *(("cidr", "gateway") if leaving else ()))
    return item


def check_segment(networks: NetworkObjects, item: Uplink | DedicatedLine) -> None:
    """Raise CalabashError if the VLAN is in use by another uplink or line, or a host or network name is invalid."""
    check_label(item.physical, f"physical network of {describe(item)}")
    check_between(
        len(item.physical), 1, PHYSICAL_LENGTH_MAX, f"length of the physical network's name of {describe(item)}"
    )
    check_count(len(item.hosts), HOSTS_PER_UPLINK, f"hosts of {describe(item)}")
    check_distinct(item.hosts, f"hosts of {describe(item)}")
    for host in item.hosts:
        for label in host.split("."):
            check_label(label, f"host of {describe(item)}")
    segments: list[Uplink | DedicatedLine] = [*networks.uplinks().values(), *networks.all(DedicatedLine)]
    for other in segments:
        same = (other.physical, other.vlan) == (item.physical, item.vlan)
        if same and (type(other), other.name) != (type(item), item.name):
            raise conflict_error(
                f"{describe(item)}: VLAN {item.vlan} of {item.physical} is used by {describe(other)}",
                hint="use another VLAN",
            )


def vpcs_limit(uplink: Uplink) -> int:
    """Return the number of VPCs that can use an uplink: the smaller one of two limits.

    One limit is the number of host addresses in the uplink's range, less that of the provider's router, because each
    VPC needs one address. The other is ``vpcs_max`` of the uplink, or VPCS_PER_UPLINK_MAX if ``vpcs_max`` is 0.
    """
    first, last = host_range(uplink.cidr)
    return min(uplink.vpcs_max or VPCS_PER_UPLINK_MAX, last - first)


def _uplink_full(uplink: Uplink, item: NetworkGateway) -> CalabashError:
    """Build the error for a gateway whose uplink accepts no more VPCs. It states the cause of the limit."""
    limit = vpcs_limit(uplink)
    raise_limit = f"can raise its limit with `calabash net uplink set {uplink.name} --vpcs-max`, or add an uplink"
    if limit == uplink.vpcs_max and limit < VPCS_PER_UPLINK_MAX:
        why, remedy = "its limit (vpcs_max)", raise_limit
    elif limit < VPCS_PER_UPLINK_MAX:
        why, remedy = f"{uplink.cidr} has no more addresses for gateways", "can add an uplink with another range"
    else:
        why, remedy = "the limit of every uplink", "can add an uplink"
    return CalabashError(
        f"{describe(item)}: uplink {uplink.name} is used by {limit} VPCs: {why}",
        reason=Reason.NO_CAPACITY,
        hint=f"leave the uplink out to have one chosen; an administrator {remedy}",
    )


def vpcs_of_uplinks(networks: NetworkObjects) -> Counter[str]:
    """Return the number of VPCs that use each uplink, by name."""
    return Counter(gateway.uplink for gateway in networks.all(NetworkGateway))


def check_gateway(networks: NetworkObjects, item: NetworkGateway, old: NetworkGateway | None) -> NetworkGateway:
    """Check a gateway and complete its uplink, address and ports.

    Raises:
        CalabashError: the object is invalid or conflicts with another one.
    """
    objects = networks.of_vpc(vpc_of(item.name))
    (vpc,) = objects.all(Vpc).values()
    if item.name in objects.all(Eip):
        raise conflict_error(f"{describe(item)}: an outside address has the same name", hint="choose another name")
    name = item.uplink or (old.uplink if old else "") or _choose_uplink(networks, vpc, item)
    uplink = networks.uplinks().get(name)
    check_immutable(replace(item, uplink=name), old, "kind", "uplink")
    if uplink is None:
        raise CalabashError(f"{describe(item)}: uplink {name[:100]!r} does not exist", reason=Reason.NOT_FOUND)
    if old is None and vpcs_of_uplinks(networks)[name] >= vpcs_limit(uplink):
        raise _uplink_full(uplink, item)
    check_new_destination(networks, vpc, item.name, (f"uplink {name} of {describe(item)}", (uplink.cidr,)))
    for route in objects.all(NetworkRoute).values():
        if route.source is None and route.prefix.prefixlen == 0 and route.prefix.version == uplink.cidr.version:
            raise conflict_error(
                f"{describe(item)}: {describe(route)} is already a route for {route.prefix}", hint="delete the route"
            )
    if item.kind is GatewayKind.NFV:
        check_managed_names(item)
        if uplink.cidr.version != 4:
            raise CalabashError(
                f"{describe(item)}: NFV gateways support IPv4 only, uplink {name} has {uplink.cidr}",
                reason=Reason.UNSUPPORTED,
            )
    address = _external_address(networks, uplink, item, item.address or (old.address if old else None))
    ports = item.ports or (old.ports if old else ())
    item = replace(item, uplink=name, address=address, ports=ports)
    check_immutable(item, old, "address", "ports")
    return item


def _choose_uplink(networks: NetworkObjects, vpc: Vpc, item: NetworkGateway) -> str:
    """Return the uplink of a new gateway: the one that contains its address, else the one with the fewest VPCs."""
    leaving = vpcs_of_uplinks(networks)
    uplinks = list(networks.uplinks().values())
    if item.address is not None:
        uplinks = [uplink for uplink in uplinks if item.address in uplink.cidr]
        if not uplinks:
            raise CalabashError(
                f"{describe(item)}: {item.address} is not in the range of an uplink", reason=Reason.NOT_FOUND
            )
    free = [
        uplink
        for uplink in uplinks
        if leaving[uplink.name] < vpcs_limit(uplink) and not first_overlap(vpc.cidrs, (uplink.cidr,))
    ]
    if not free:
        raise CalabashError(
            f"{describe(item)}: no uplink can accept another VPC: {len(uplinks)} uplinks accept"
            f" {sum(map(vpcs_limit, uplinks))} VPCs, {sum(leaving[uplink.name] for uplink in uplinks)} use them",
            reason=Reason.NO_CAPACITY,
            hint="an administrator can add one with `calabash net uplink create`, or raise the limit of one with"
            f" `calabash net uplink set UPLINK --vpcs-max`, up to {VPCS_PER_UPLINK_MAX}",
        )
    return min(free, key=lambda uplink: (leaving[uplink.name], uplink.number)).name


def gateway_of(objects: VpcObjects, subject: str) -> NetworkGateway:
    """Return the gateway of the VPC. Raises CalabashError if there is none; ``subject`` names the object in the message."""
    for gateway in objects.all(NetworkGateway).values():
        return gateway
    vpc = subject.rsplit(" ", 1)[-1].split("/", 1)[0]
    raise CalabashError(
        f"{subject}: the VPC has no gateway",
        reason=Reason.NOT_FOUND,
        hint=f"calabash net gateway create {vpc}/out --snat",
    )


def check_eip(networks: NetworkObjects, item: Eip, old: Eip | None) -> Eip:
    """Check an outside address and allocate it if it is empty.

    Raises:
        CalabashError: the object is invalid or conflicts with another one.
    """
    objects = networks.of_vpc(vpc_of(item.name))
    gateway = gateway_of(objects, describe(item))
    if gateway.name == item.name:
        raise conflict_error(f"{describe(item)}: the gateway has the same name", hint="choose another name")
    uplink = networks.uplinks()[gateway.uplink]
    item = replace(
        item, address=_external_address(networks, uplink, item, item.address or (old.address if old else None))
    )
    check_immutable(item, old, "address")
    return item


def _external_address(
    networks: NetworkObjects, uplink: Uplink, item: NetworkGateway | Eip, asked: Address | None
) -> Address:
    """Return the requested address of the uplink if it is free, or allocate one if ``asked`` is None."""
    taken: dict[int, NetworkGateway | Eip] = {}
    holders: list[NetworkGateway | Eip] = [*networks.all(NetworkGateway), *networks.all(Eip)]
    for other in holders:
        if other.address is not None and (type(other), other.name) != (type(item), item.name):
            taken[int(other.address)] = other
    if asked is None:
        return free_address(
            uplink.cidr, lambda number: number in taken or number == int(uplink.gateway), describe(item)
        )
    check_host_address(asked, uplink.cidr, describe(item))
    if asked == uplink.gateway:
        raise conflict_error(f"{describe(item)}: {asked} is the address of the router of uplink {uplink.name}")
    if (holder := taken.get(int(asked))) is not None:
        own = vpc_of(holder.name) == vpc_of(item.name)
        by = describe(holder) if own else "another VPC"
        raise conflict_error(
            f"{describe(item)}: {asked} is taken by {by}", hint="leave the address out to have one allocated"
        )
    return asked


def check_nat(networks: NetworkObjects, item: NatRule, old: NatRule | None) -> NatRule:
    """Check a NAT rule: its port, its outside address, and conflicts with other rules and load balancers.

    Raises:
        CalabashError: the object is invalid or conflicts with another one.
    """
    objects = networks.of_vpc(vpc_of(item.name))
    gateway = gateway_of(objects, describe(item))
    port = require_object(objects, Port, item.port, describe(item))
    own = item.eip == gateway.name
    address = gateway.address if own else require_object(objects, Eip, item.eip, describe(item)).address
    if address is None or not any(inside.version == address.version for inside in port.addresses):
        raise CalabashError(f"{describe(item)}: port {port.name} has no address of the IP version of {address}")
    if item.kind is NatKind.FIP:
        if own:
            raise CalabashError(
                f"{describe(item)}: {item.eip} is the address of the gateway", hint="use an EIP for a floating address"
            )
        if item.protocol is not TransportProtocol.ANY or item.outside_number or item.inside_number:
            raise CalabashError(
                f"{describe(item)}: a floating address forwards all protocols and ports", hint="use dnat to forward one"
            )
        if item.distributed and gateway.kind is GatewayKind.NFV:
            raise CalabashError(f"{describe(item)}: an NFV gateway does not support distributed translation")
    else:
        if item.protocol not in FORWARDED or item.distributed:
            raise CalabashError(f"{describe(item)}: dnat forwards tcp or udp, and is not distributed")
        check_between(item.outside_number, 1, NUMBER_MAX, f"outside port number of {describe(item)}")
        check_between(item.inside_number, 1, NUMBER_MAX, f"inside port number of {describe(item)}")
    _check_nat_conflicts(objects, item, address)
    check_immutable(item, old, "kind")
    return item


def _check_nat_conflicts(objects: VpcObjects, item: NatRule, address: Address) -> None:
    for other in objects.all(NatRule).values():
        if other.name == item.name:
            continue
        both = item.kind is other.kind is NatKind.FIP
        numbers = (other.protocol, other.outside_number) == (item.protocol, item.outside_number)
        if other.eip == item.eip and (NatKind.FIP in (item.kind, other.kind) or numbers):
            raise conflict_error(f"{describe(item)}: {item.eip} is in use by {describe(other)}")
        if both and other.port == item.port:
            raise conflict_error(
                f"{describe(item)}: port {item.port} already has the floating address of {describe(other)}"
            )
    for balancer in objects.all(LoadBalancer).values():
        numbers = (balancer.protocol, balancer.vip_number) == (item.protocol, item.outside_number)
        if balancer.vip == address and (item.kind is NatKind.FIP or numbers):
            raise conflict_error(f"{describe(item)}: {item.eip} is in use by {describe(balancer)}")
