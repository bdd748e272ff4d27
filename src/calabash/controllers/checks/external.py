"""Connectivity checks beyond the subnet of a probe: gateways, NAT, services, peerings, dedicated lines and rate limits.

Each check tests one *promise*, a sentence about the network that should be true. A probe is only one end of the tested
connection. If the other end is a user's port that does not respond, or whose security groups admit no traffic, the
network cannot be judged; the result is then "not tried" (None) instead of "failed".
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator

from calabash.controllers.checks.probes import Probe
from calabash.controllers.checks.result import ConnectivityResult
from calabash.model.addresses import Address
from calabash.model.errors import CalabashError
from calabash.model.network import (
    DedicatedLine,
    Direction,
    Eip,
    GatewayKind,
    NatKind,
    NatRule,
    NetworkGateway,
    Peering,
    Port,
    QosPolicy,
    SecurityGroup,
    Subnet,
    Uplink,
    vpc_of,
)
from calabash.model.network_services import LoadBalancer, ServiceEndpoint, TransportProtocol
from calabash.net.addresses.ranges import is_within
from calabash.net.objects.acceptance import (
    accepted_peerings,
    endpoint_accepted,
    offered_balancer,
    peering_accepted,
    peering_ranges,
)
from calabash.net.objects.collection import NetworkObjects

FarProbe = Callable[
    [Subnet, Probe], Probe
]  # places a probe in a subnet of another VPC, with a group that admits the given probe
_ANY, _ICMP, _TCP = TransportProtocol.ANY, TransportProtocol.ICMP, TransportProtocol.TCP
_OWN_VERSION = "its IP version differs from that of the probe"
RATE_S = 2.0
_OVER = 1.2  # tolerance of a meter, which counts whole packets
_NO_BACKEND = "no backend responds: check that they run and that their group admits the VPC"


def beyond(networks: NetworkObjects, vpc: str, probe: Probe, far: FarProbe) -> Iterator[ConnectivityResult]:
    """Yield the results of all checks of this module except those of rate limits.

    Args:
        probe: probe in the VPC, from which the checks are made.
        far: places a second probe in a subnet of a peered VPC.
    """
    yield from gateways(networks, vpc, probe)
    yield from translations(networks, vpc, probe)
    yield from services(networks, vpc, probe)
    yield from peers(networks, vpc, probe, far)
    yield from lines(networks, vpc, probe)


def gateways(networks: NetworkObjects, vpc: str, probe: Probe) -> Iterator[ConnectivityResult]:
    """Check that the probe reaches the router of the uplink through each gateway with SNAT."""
    for gateway in networks.of_vpc(vpc).all(NetworkGateway).values():
        uplink = networks.find(Uplink, gateway.uplink)
        promise = f"gateway {gateway.name} leads to the outside"
        if uplink is None or not gateway.snat or probe.address.version != uplink.gateway.version:
            yield ConnectivityResult(promise=promise, held=None, detail="it has no SNAT for this range")
        else:
            yield ConnectivityResult(promise=promise, held=probe.pings(uplink.gateway), detail=f"ping {uplink.gateway}")


def translations(networks: NetworkObjects, vpc: str, probe: Probe) -> Iterator[ConnectivityResult]:
    """Check the NAT rules of the VPC by connections from inside it.

    OVN applies the rules to such connections as well. NFV gateways do not, so with one of them no rule is tried.
    """
    own = networks.of_vpc(vpc)
    outside = {eip.name: eip.address for eip in own.all(Eip).values()}
    outside |= {gateway.name: gateway.address for gateway in own.all(NetworkGateway).values()}
    programs = any(gateway.kind is GatewayKind.NFV for gateway in own.all(NetworkGateway).values())
    for rule in own.all(NatRule).values():
        address, is_floating = outside.get(rule.eip), rule.kind is NatKind.FIP
        where = f"{address}" if is_floating else f"{address}:{rule.outside_number}"
        promise = f"{'fip' if is_floating else 'dnat'} {rule.name} leads from {where} to {rule.port}"
        port = own.all(Port)[rule.port]
        inside = next((one for one in port.addresses if address is not None and one.version == address.version), None)
        admitted = _admits_all(networks, port, _ICMP if is_floating else rule.protocol, rule.inside_number)
        if address is None or inside is None:
            yield ConnectivityResult(promise=promise, held=None, detail="it has no address on one side")
        elif address.version != probe.address.version:
            yield ConnectivityResult(promise=promise, held=None, detail=_OWN_VERSION)
        elif programs:
            yield ConnectivityResult(
                promise=promise, held=None, detail="an NFV gateway does not apply the rule to traffic from inside"
            )
        elif not is_floating and rule.protocol is not _TCP:
            yield ConnectivityResult(
                promise=promise, held=None, detail=f"a program with protocol {rule.protocol} need not respond"
            )
        elif not admitted:
            yield ConnectivityResult(
                promise=promise, held=None, detail=f"no security group of {rule.port} admits traffic from outside"
            )
        elif is_floating:
            yield _result_if_port_responds(
                promise, probe.pings(address), functools.partial(probe.pings, inside), rule.port
            )
        else:
            held = probe.connects(address, rule.outside_number)
            directly = functools.partial(probe.connects, inside, rule.inside_number)
            yield _result_if_port_responds(promise, held, directly, rule.port)


def services(networks: NetworkObjects, vpc: str, probe: Probe) -> Iterator[ConnectivityResult]:
    """Check load balancers, and endpoints of load balancers of other VPCs."""
    own = networks.of_vpc(vpc)
    for balancer in own.all(LoadBalancer).values():
        yield _service(f"lb {balancer.name}", balancer, balancer.vip, probe)
    for endpoint in own.all(ServiceEndpoint).values():
        source = offered_balancer(networks, endpoint.source, vpc)
        if source is None or endpoint.vip is None or not endpoint_accepted(networks, endpoint):
            detail = f"{endpoint.source} is not offered to {vpc}"
            yield ConnectivityResult(promise=f"endpoint {endpoint.name} answers", held=None, detail=detail)
        else:
            yield _service(f"endpoint {endpoint.name}", source, endpoint.vip, probe)


def peers(networks: NetworkObjects, vpc: str, probe: Probe, far: FarProbe) -> Iterator[ConnectivityResult]:
    """Check accepted peerings, with a probe in the first reachable subnet of the peer."""
    for item in networks.of_vpc(vpc).all(Peering).values():
        if not peering_accepted(networks, item):
            detail = "the other VPC has not requested it"
            yield ConnectivityResult(promise=f"peering {item.name} leads there", held=None, detail=detail)
    for item, other in accepted_peerings(networks, vpc):
        promise, ranges = f"peering {item.name} leads there", peering_ranges(item, other)
        found = (
            subnet
            for subnet in networks.of_vpc(other.name).all(Subnet).values()
            if any(is_within(cidr, ranges) and cidr.version == probe.address.version for cidr in subnet.cidrs[:1])
        )
        subnet = next(found, None)
        if subnet is None:
            yield ConnectivityResult(promise=promise, held=None, detail="no subnet of the peer is within its routes")
            continue
        try:
            other_end = far(subnet, probe)
        except CalabashError as error:
            yield ConnectivityResult(promise=promise, held=False, detail=error.message)
            continue
        yield ConnectivityResult(promise=promise, held=probe.reaches(other_end), detail=f"to {other_end.address}")


def lines(networks: NetworkObjects, vpc: str, probe: Probe) -> Iterator[ConnectivityResult]:
    """Check that the peer of each dedicated line responds to ping."""
    for line in networks.of_vpc(vpc).all(DedicatedLine).values():
        promise = f"line {line.name} leads to {line.peer}"
        if line.peer.version != probe.address.version:
            yield ConnectivityResult(promise=promise, held=None, detail=_OWN_VERSION)
        else:
            held = probe.pings(line.peer)
            detail = "" if held else "the peer does not respond to ping: check its route to the VPC"
            yield ConnectivityResult(promise=promise, held=held, detail=detail)


def rates(policy: QosPolicy, bound: Probe, free: Probe) -> Iterator[ConnectivityResult]:
    """Check that a probe with a QoS policy sends and receives at most the configured rates."""
    for verb, bits_per_s, ends in (
        ("sends", policy.egress_bits_per_s, (bound, free)),
        ("gets", policy.ingress_bits_per_s, (free, bound)),
    ):
        if not bits_per_s:
            continue
        promise = f"a port with {policy.name} {verb} at most {bits_per_s / 1e6:g} Mbit/s"
        sent, received_bits, lasted_s = ends[0].flood(ends[1], for_s=RATE_S)
        most = bits_per_s * (lasted_s + 1.0) * _OVER  # a burst of one second is permitted
        if sent < 2 * most:
            detail = f"this machine sends only {sent / lasted_s / 1e6:.0f} Mbit/s, too little for a result"
            yield ConnectivityResult(promise=promise, held=None, detail=detail)
        else:
            detail = f"{received_bits / lasted_s / 1e6:.1f} Mbit/s of {sent / lasted_s / 1e6:.0f} came"
            yield ConnectivityResult(promise=promise, held=0 < received_bits <= most, detail=detail)


def _service(what: str, balancer: LoadBalancer, vip: Address, probe: Probe) -> ConnectivityResult:
    promise = f"{what} answers at {vip}:{balancer.vip_number}"
    if balancer.protocol is not _TCP:
        return ConnectivityResult(
            promise=promise, held=None, detail=f"a program with protocol {balancer.protocol.value} need not respond"
        )
    if vip.version != probe.address.version:
        return ConnectivityResult(promise=promise, held=None, detail=_OWN_VERSION)
    held = probe.connects(vip, balancer.vip_number)
    return ConnectivityResult(promise=promise, held=held, detail="" if held else _NO_BACKEND)


def _result_if_port_responds(promise: str, held: bool, directly: Callable[[], bool], port: str) -> ConnectivityResult:
    """Return the result of a NAT check. A failure counts only if the port responds at its own address.

    Otherwise the result is "not tried", because the port itself may be the cause.

    Args:
        promise: the sentence that is tested.
        held: the port responded through the translated address.
        directly: returns True if the port responds at its own address.
    """
    if held or directly():
        return ConnectivityResult(
            promise=promise, held=held, detail="" if held else f"{port} responds at its own address"
        )
    return ConnectivityResult(promise=promise, held=None, detail=f"{port} does not respond at its own address either")


def _admits_all(networks: NetworkObjects, port: Port, protocol: TransportProtocol, number: int) -> bool:
    """Return True if a security group of the port admits this protocol and port number from all addresses."""
    names: Iterable[str] = port.security_groups or (f"{vpc_of(port.name)}/default",)
    groups = [group for name in names if (group := networks.find(SecurityGroup, name)) is not None]
    return any(
        rule.direction is Direction.INGRESS
        and rule.protocol in {_ANY, protocol}
        and rule.peer is not None
        and rule.peer.prefixlen == 0
        and (rule.ports == (0, 0) or rule.ports[0] <= number <= rule.ports[1])
        for group in groups
        for rule in group.rules
    )
