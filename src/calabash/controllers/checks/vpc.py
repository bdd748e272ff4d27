"""All connectivity checks of a VPC, one after another."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from calabash.adapters.host.children import run_program
from calabash.controllers.checks.external import beyond, rates
from calabash.controllers.checks.probe_ports import PER_SUBNET, ProbePlaces
from calabash.controllers.checks.probes import Probe
from calabash.controllers.checks.result import ConnectivityResult
from calabash.model.errors import CalabashError, Reason
from calabash.model.network import Direction, Peering, Port, QosPolicy, SecurityGroup, Subnet, Vpc, vpc_of
from calabash.model.network_services import ServiceEndpoint, TransportProtocol
from calabash.net.ovn.northbound import naming
from calabash.net.store.networks import Networks

POLICIES_MAX = 4
TRACES_MAX = 50
TRACE_S = 30.0
_OUTPUT = re.compile(r'output(?:_port)?\("?([^")]+)"?\)|output to "([^"]+)"')


def check_connectivity(
    networks: Networks, vpc: str, places: ProbePlaces, trace: Sequence[str]
) -> Iterator[ConnectivityResult]:
    """Run all connectivity checks of a VPC and yield their results.

    Args:
        networks: all networks of the pool.
        vpc: name of the VPC.
        places: creates the probes.
        trace: command line of ``ovn-trace``, to which a switch and a packet are appended; empty if it is not available.

    Raises:
        CalabashError: NOT_FOUND if the VPC does not exist.
    """
    found = networks.find(Vpc, vpc)
    if found is None:
        raise CalabashError(
            f"VPC {vpc[:80]} does not exist", reason=Reason.NOT_FOUND, hint="see `calabash net vpc list`"
        )
    subnets = list(networks.vpcs[vpc].all(Subnet).values())
    if not subnets:
        yield ConnectivityResult(
            promise=f"{vpc} has a subnet", held=None, detail="it has none; create one with calabash net subnet create"
        )
        return
    ports = places.put_ports(subnets)
    probes: dict[str, list[Probe]] = {}
    for subnet in subnets:
        for number, port in enumerate(ports[subnet.name]):
            try:
                probe = places.place(port, number)
            except CalabashError as error:
                yield ConnectivityResult(promise=f"a port of {subnet.name} works", held=False, detail=error.message)
                continue
            probes.setdefault(subnet.name, []).append(probe)
            yield ConnectivityResult(promise=f"a port of {subnet.name} works on {probe.host}", held=True)
    yield from _check_subnets(networks, vpc, subnets, probes)
    for some in probes.values():
        yield from beyond(networks, vpc, some[0], places.place_far)
        break
    yield from _check_rates(networks, vpc, places, probes)
    yield from _check_isolation(networks, vpc, [some[0] for some in probes.values()], trace)


def _check_subnets(
    networks: Networks, vpc: str, subnets: Sequence[Subnet], probes: Mapping[str, Sequence[Probe]]
) -> Iterator[ConnectivityResult]:
    permitted = _default_group_permits(networks, vpc)
    for subnet in subnets:
        pair = probes.get(subnet.name, ())
        if len(pair) < 2:
            continue
        one, other = pair[0], pair[1]
        if subnet.dns:
            label = one.facts.name.rpartition("/")[2]
            name = f"{label}.{one.facts.domain}"
            yield ConnectivityResult(promise=f"DNS of {subnet.name} knows {name}", held=_resolved(other, name, one))
        if subnet.dhcp and one.address.version == 4:
            offered, own = one.dhcp_offer(), str(one.address)
            detail = "" if offered == own else f"DHCP offers {offered or 'nothing'}"
            promise = f"DHCP of {subnet.name} offers a port its address"
            yield ConnectivityResult(promise=promise, held=offered == own, detail=detail)
        between = f"{subnet.name}: {one.host} to {other.host}"
        if not permitted:
            yield ConnectivityResult(
                promise=between, held=None, detail="the default group does not permit traffic between its ports"
            )
            continue
        yield ConnectivityResult(promise=between, held=one.reaches(other))
        whole = one.facts.mtu_bytes
        yield ConnectivityResult(promise=f"{between}, {whole} bytes whole", held=one.reaches(other, size_bytes=whole))
        if one.address.version == 4:
            foreign = str(one.facts.gateways[0])
            for what, kept in (
                ("a foreign MAC", one.is_forgery_dropped(other, mac="0a:fe:fe:fe:fe:fe")),
                ("a foreign address", one.is_forgery_dropped(other, address=foreign)),
            ):
                yield ConnectivityResult(promise=f"{subnet.name}: {what} is dropped", held=kept)
    if permitted:
        for here, there in pairwise(s.name for s in subnets if probes.get(s.name)):
            one, other = probes[here][0], probes[there][-1]
            if one.address.version == other.address.version:
                yield ConnectivityResult(promise=f"{here} to {there}", held=one.reaches(other))


def _check_rates(
    networks: Networks, vpc: str, places: ProbePlaces, probes: Mapping[str, Sequence[Probe]]
) -> Iterator[ConnectivityResult]:
    """Check the rate limits of QoS policies, with one additional probe for each of the first POLICIES_MAX policies."""
    free = next((some[-1] for some in probes.values()), None)
    for number, policy in enumerate(networks.vpcs[vpc].all(QosPolicy).values(), PER_SUBNET + 1):
        promise = f"a port with {policy.name} is bounded"
        if free is None or not _default_group_permits(networks, vpc):
            yield ConnectivityResult(
                promise=promise, held=None, detail="the default group does not permit traffic between its ports"
            )
        elif number > PER_SUBNET + POLICIES_MAX:
            yield ConnectivityResult(promise=promise, held=None, detail=f"only {POLICIES_MAX} policies are checked")
        else:
            subnet = free.facts.name.rpartition("/")[0]
            try:
                bound = places.place(places.put_port(subnet, number, qos=policy.name), number)
            except CalabashError as error:
                yield ConnectivityResult(promise=promise, held=False, detail=error.message)
                continue
            yield from rates(policy, bound, free)


def _resolved(probe: Probe, name: str, owner: Probe) -> bool:
    return probe.resolves(name, probe.facts.resolvers[0]) in {str(a) for a, _ in owner.facts.addresses}


def _default_group_permits(networks: Networks, vpc: str) -> bool:
    """Return True if the default group permits traffic between its ports."""
    group = networks.find(SecurityGroup, f"{vpc}/default")
    rules = group.rules if group is not None else ()
    inwards = any(
        r.direction is Direction.INGRESS and r.protocol is TransportProtocol.ANY and r.peer_group == f"{vpc}/default"
        for r in rules
    )
    outwards = any(
        r.direction is Direction.EGRESS
        and r.protocol is TransportProtocol.ANY
        and (r.peer_group == f"{vpc}/default" or (r.peer is not None and r.peer.prefixlen == 0))
        for r in rules
    )
    return inwards and outwards


def _check_isolation(
    networks: Networks, vpc: str, probes: Sequence[Probe], trace: Sequence[str]
) -> Iterator[ConnectivityResult]:
    """Check with ovn-trace that packets to ports of other VPCs do not leave the VPC.

    VPCs with which there is a peering or a service endpoint are left out.
    """
    related = {p.name.partition("/")[2] for p in networks.vpcs[vpc].all(Peering).values()}
    related |= {vpc_of(e.source) for e in networks.vpcs[vpc].all(ServiceEndpoint).values()}
    others = [
        port
        for name, objects in sorted(networks.vpcs.items())
        if name and name != vpc and name not in related
        for port in list(objects.all(Port).values())[:1]
    ][:TRACES_MAX]
    promise = f"nothing of {vpc} gets into {len(others)} other VPC{'' if len(others) == 1 else 's'}"
    if not others or not probes or not trace:
        yield ConnectivityResult(
            promise=promise, held=None, detail="ovn-trace is not installed" if others and probes else ""
        )
        return
    leaks: list[str] = []
    for port in others:
        for probe in probes:
            leaks += _leaks_to(probe, port, trace, vpc)
    yield ConnectivityResult(promise=promise, held=not leaks, detail=", ".join(leaks[:3]))


def _leaks_to(probe: Probe, port: Port, trace: Sequence[str], vpc: str) -> list[str]:
    """Return the ports of other VPCs that a packet of the probe reaches if it is addressed to ``port``.

    Each is returned as text "PROBE to PORT"; an empty list means that the VPC is isolated from this port.

    Args:
        probe: sender of the packet.
        port: port of another VPC.
        trace: command line of ``ovn-trace``.
        vpc: VPC of the probe.
    """
    subnet, found = probe.facts.name.rpartition("/")[0], []
    for address in port.addresses[:1]:
        ip = "ip6" if address.version == 6 else "ip4"
        source = next((str(a) for a, _ in probe.facts.addresses if a.version == address.version), "")
        if not source:
            continue
        flow = (
            f'inport=="{probe.facts.name}" && eth.src=={probe.facts.mac} && eth.dst=={port.mac} && {ip}.src=={source}'
            f" && {ip}.dst=={address} && ip.ttl==64 && tcp && tcp.dst==80"
        )
        done = run_program([*trace, "--minimal", naming.switch(subnet), flow], timeout_s=TRACE_S)
        if done.returncode != 0:
            raise CalabashError(f"ovn-trace: {done.stderr.strip()[:200]}", reason=Reason.UNREACHABLE)
        outputs = [one or other for one, other in _OUTPUT.findall(done.stdout)]
        found += [f"{probe.facts.name} to {name}" for name in outputs if "/" in name and vpc_of(name) != vpc]
    return found
