"""Invariants of a store of networks, checked independently of the checks of the product."""

from __future__ import annotations

import itertools
from collections import Counter

from calabash.model.addresses import overlapping
from calabash.model.network import (
    DedicatedLine,
    Eip,
    GatewayKind,
    NatRule,
    NetworkGateway,
    Peering,
    Port,
    QosPolicy,
    SecurityGroup,
    Subnet,
    Vpc,
    vpc_of,
)
from calabash.model.network_services import Layer, LoadBalancer, ServiceEndpoint
from calabash.net.checks.gateways import vpcs_limit
from calabash.net.objects.acceptance import accepted_peerings
from calabash.net.objects.collection import SHARED, VpcObjects
from calabash.net.store.networks import Networks


def check_store(networks: Networks) -> None:
    """Assert all invariants."""
    assert Networks.from_objects(networks.items(), networks.revision) == networks
    _check_pool(networks)
    for vpc, objects in networks.vpcs.items():
        if vpc != SHARED:
            _check_ranges(networks, objects)
            _check_addresses(objects)
            _check_references(networks, objects)


def _check_pool(networks: Networks) -> None:
    for numbers in (
        [vpc.number for vpc in networks.all(Vpc)],
        [uplink.number for uplink in networks.uplinks().values()],
        [endpoint.number for endpoint in networks.all(ServiceEndpoint)],
        [line.number for line in networks.all(DedicatedLine)],
    ):
        assert len(set(numbers)) == len(numbers)
        assert min(numbers, default=1) >= 1
    pairs = {(peering.number, frozenset(peering.name.split("/"))) for peering in networks.all(Peering)}
    assert len({number for number, _ in pairs}) == len(pairs) == len({pair for _, pair in pairs})
    outside = [gateway.address for gateway in networks.all(NetworkGateway)]
    outside += [eip.address for eip in networks.all(Eip)]
    outside += [uplink.gateway for uplink in networks.uplinks().values()]
    assert len(set(outside)) == len(outside)
    assert None not in outside
    vlans = [(uplink.physical, uplink.vlan) for uplink in networks.uplinks().values()]
    vlans += [(line.physical, line.vlan) for line in networks.all(DedicatedLine)]
    assert len(set(vlans)) == len(vlans)
    leaving = Counter(gateway.uplink for gateway in networks.all(NetworkGateway))
    for name, count in leaving.items():
        assert count <= vpcs_limit(networks.uplinks()[name])
    assert overlapping(uplink.cidr for uplink in networks.uplinks().values()) is None
    macs = [port.mac for port in networks.all(Port) if not port.mac.startswith("0a:bb")]
    assert len(set(macs)) == len(macs)


def _check_ranges(networks: Networks, objects: VpcObjects) -> None:
    (vpc,) = objects.all(Vpc).values()
    cidrs = [cidr for subnet in objects.all(Subnet).values() for cidr in subnet.cidrs]
    assert overlapping(cidrs) is None
    for cidr in cidrs:
        assert any(cidr.version == whole.version and cidr[0] in whole and cidr[-1] in whole for whole in vpc.cidrs)
    numbers = [subnet.number for subnet in objects.all(Subnet).values()]
    assert len(set(numbers)) == len(numbers)
    reached = list(vpc.cidrs)
    for line in objects.all(DedicatedLine).values():
        reached += [line.cidr, *line.routes]
    for gateway in objects.all(NetworkGateway).values():
        uplink = networks.uplinks()[gateway.uplink]
        assert gateway.address in uplink.cidr
        assert all(eip.address in uplink.cidr for eip in objects.all(Eip).values())
        reached.append(uplink.cidr)
    for peering, other in accepted_peerings(networks, vpc.name):
        assert overlapping((*vpc.cidrs, *other.cidrs)) is None
        reached += peering.routes or other.cidrs
    assert overlapping(reached) is None
    assert len(objects.all(NetworkGateway)) <= 1


def _check_addresses(objects: VpcObjects) -> None:
    ports = objects.all(Port)
    subnets = objects.all(Subnet)
    taken = [address for port in ports.values() for address in port.addresses]
    taken += [gateway for subnet in subnets.values() for gateway in subnet.gateways]
    taken += [endpoint.vip for endpoint in objects.all(ServiceEndpoint).values() if endpoint.vip]
    outside = {eip.address for eip in objects.all(Eip).values()}
    shared = {lb.vip for lb in objects.all(LoadBalancer).values() if lb.layer is Layer.L4} - outside
    taken += shared
    assert len(set(taken)) == len(taken)
    served = [(lb.vip, lb.protocol, lb.vip_number) for lb in objects.all(LoadBalancer).values()]
    assert len(set(served)) == len(served)
    for port in ports.values():
        cidrs = subnets[port.name.rsplit("/", 1)[0]].cidrs
        assert len(port.addresses) == len(cidrs)
        for address, cidr in zip(port.addresses, cidrs, strict=True):
            assert address in cidr
            assert address != cidr[0]
            assert cidr.version == 6 or address != cidr[-1]
    assert len({port.mac for port in ports.values()}) == len(ports)


def _check_references(networks: Networks, objects: VpcObjects) -> None:
    (vpc,) = objects.all(Vpc).values()
    ports, groups = objects.all(Port), objects.all(SecurityGroup)
    assert f"{vpc.name}/default" in groups
    assert all(vpc_of(item.name) == vpc.name for item in objects)
    for port in ports.values():
        assert port.security_groups
        assert set(port.security_groups) <= set(groups)
        assert set(port.virtual_parents) <= set(ports)
        assert not port.qos or port.qos in objects.all(QosPolicy)
    for rule in itertools.chain.from_iterable(group.rules for group in groups.values()):
        assert not rule.peer_group or rule.peer_group in groups
    targets = {**objects.all(Eip), **objects.all(NetworkGateway)}
    for nat in objects.all(NatRule).values():
        assert nat.port in ports
        assert nat.eip in targets
    made = {name for name in ports if "/x-" in name}
    pairs = [(lb.ports, lb.layer is Layer.L7) for lb in objects.all(LoadBalancer).values()]
    pairs += [(gateway.ports, gateway.kind is GatewayKind.NFV) for gateway in objects.all(NetworkGateway).values()]
    for own, twice in pairs:
        assert bool(own) == twice
        assert set(own) <= made
        made -= set(own)
    assert not made
    for balancer in objects.all(LoadBalancer).values():
        assert {backend.port for backend in balancer.backends} <= set(ports)
    for endpoint in objects.all(ServiceEndpoint).values():
        assert networks.find(LoadBalancer, endpoint.source)
        assert endpoint.subnet in objects.all(Subnet)
    for peering in objects.all(Peering).values():
        assert networks.find(Vpc, peering.name.split("/")[1])
