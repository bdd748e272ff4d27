"""Replicas of appliances that a store of networks requires: two for each NFV gateway and each L7 load balancer."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network
from typing import TypeVar

from calabash.model.addresses import Address
from calabash.model.errors import CalabashError, Reason
from calabash.model.network import (
    Eip,
    GatewayKind,
    NatKind,
    NatRule,
    NetworkGateway,
    Port,
    Subnet,
    Uplink,
    Vpc,
    vpc_of,
)
from calabash.model.network_services import Layer, LoadBalancer
from calabash.net.appliances.model import BalancerReplica, NfvReplica, PairMember, Replica, Translation
from calabash.net.appliances.naming import RANKS, outside_mac, outside_port, pair_ports
from calabash.net.objects.collection import NetworkObjects

T = TypeVar("T", Port, Subnet, Uplink, Vpc)


def replicas_of(
    networks: NetworkObjects, item: NetworkGateway | LoadBalancer, closed: Sequence[IPv4Network] = ()
) -> tuple[Replica, ...]:
    """Return the two replicas of an object, or () if OVN implements the object.

    Args:
        closed: address ranges of the platform, which the VPC must not reach.

    Raises CalabashError if another object is missing that the object needs.
    """
    if isinstance(item, LoadBalancer):
        return tuple(_balancer(networks, item, rank) for rank in RANKS) if item.layer is Layer.L7 else ()
    return tuple(_gateway(networks, item, rank, closed) for rank in RANKS) if item.kind is GatewayKind.NFV else ()


def assign_hosts(replicas: Sequence[Replica], hosts: Sequence[str], number: int) -> dict[str, str]:
    """Return the host of each replica of a pair, by replica name; {} if there are no hosts.

    With two or more hosts, the replicas of a pair are on different hosts.

    Args:
        number: number of the pair from ``placement_number``, by which pairs are spread over the hosts.
    """
    return {one.member.name: hosts[(number + one.member.rank) % len(hosts)] for one in replicas} if hosts else {}


def placement_number(item: str) -> int:
    """Return a number for ``assign_hosts`` that depends only on the object's name.

    So a change of other objects moves no pair to other hosts.
    """
    return zlib.crc32(item.encode())


def _pair_member(networks: NetworkObjects, item: NetworkGateway | LoadBalancer, rank: int) -> PairMember:
    names = pair_ports(item)
    own, peer, virtual = (
        _required(networks, Port, name, item.name) for name in (names[rank - 1], names[2 - rank], names[2])
    )
    subnet = _required(networks, Subnet, own.name.rpartition("/")[0], item.name)
    vpc = _required(networks, Vpc, vpc_of(item.name), item.name)
    version = item.vip.version if isinstance(item, LoadBalancer) else 4
    cidr = next((cidr for cidr in subnet.cidrs if cidr.version == version), None)
    router = next((gateway for gateway in subnet.gateways if gateway.version == version), None)
    if cidr is None or router is None:
        raise CalabashError(
            f"{item.name}: subnet {subnet.name} has no IPv{version} range",
            reason=Reason.UNSUPPORTED,
            hint="NFV gateways need IPv4" if version == 4 else "add an IPv6 range to the subnet",
        )
    return PairMember(
        name=own.name,
        rank=rank,
        number=vpc.number,
        mac=own.mac,
        mtu_bytes=vpc.mtu_bytes,
        own=_address(own, version),
        peer=_address(peer, version),
        prefix=cidr.prefixlen,
        router=router,
        virtual=_address(virtual, version),
    )


def _gateway(networks: NetworkObjects, gateway: NetworkGateway, rank: int, closed: Sequence[IPv4Network]) -> NfvReplica:
    member = _pair_member(networks, gateway, rank)
    uplink = _required(networks, Uplink, gateway.uplink, gateway.name)
    vpc = _required(networks, Vpc, vpc_of(gateway.name), gateway.name)
    address, router = gateway.address, uplink.gateway
    if not isinstance(address, IPv4Address) or not isinstance(router, IPv4Address):
        raise CalabashError(
            f"{gateway.name}: NFV gateways support IPv4 only, uplink {uplink.name} has {uplink.cidr}",
            reason=Reason.UNSUPPORTED,
            hint="use an uplink with IPv4, or a gateway of kind ovn",
        )
    own = networks.of_vpc(vpc.name)
    eips = {eip.name: eip.address for eip in own.all(Eip).values() if isinstance(eip.address, IPv4Address)}
    outside = eips | {gateway.name: address}
    return NfvReplica(
        member=member,
        gateway=gateway.name,
        ranges=tuple(cidr for cidr in vpc.cidrs if isinstance(cidr, IPv4Network)),
        closed=tuple(closed),
        outside_port=outside_port(gateway.name, rank),
        outside_mac=outside_mac(vpc.number, rank),
        address=address,
        outside_prefix=uplink.cidr.prefixlen,
        outside_router=router,
        addresses=tuple(sorted(set(eips.values()) - {address})),
        snat=gateway.snat,
        translations=tuple(
            _translation(networks, rule, outside[rule.eip]) for rule in own.all(NatRule).values() if rule.eip in outside
        ),
    )


def _translation(networks: NetworkObjects, rule: NatRule, outside: IPv4Address) -> Translation:
    inside = _address(_required(networks, Port, rule.port, rule.name), 4)
    if not isinstance(inside, IPv4Address):
        raise CalabashError(f"{rule.name}: port {rule.port} has no IPv4 address", reason=Reason.UNSUPPORTED)
    if rule.kind is NatKind.FIP:
        return Translation(outside=outside, inside=inside)
    return Translation(
        outside=outside,
        inside=inside,
        protocol=rule.protocol,
        outside_number=rule.outside_number,
        inside_number=rule.inside_number,
    )


def _balancer(networks: NetworkObjects, balancer: LoadBalancer, rank: int) -> BalancerReplica:
    member = _pair_member(networks, balancer, rank)
    targets = tuple(
        (
            backend.port.partition("/")[2].replace("/", "."),
            _address(_required(networks, Port, backend.port, balancer.name), member.own.version),
            backend.number,
        )
        for backend in balancer.backends
    )
    return BalancerReplica(
        member=member,
        balancer=balancer.name,
        number=balancer.vip_number,
        targets=targets,
        check=balancer.check,
        certificate=balancer.certificate,
    )


def _required(networks: NetworkObjects, object_type: type[T], name: str, subject: str) -> T:
    found = networks.find(object_type, name)
    if found is None:
        raise CalabashError(f"{subject}: {object_type.__name__.lower()} {name} does not exist", reason=Reason.NOT_FOUND)
    return found


def _address(port: Port, version: int) -> Address:
    for address in port.addresses:
        if address.version == version:
            return address
    raise CalabashError(f"port {port.name} has no IPv{version} address", reason=Reason.UNSUPPORTED)
