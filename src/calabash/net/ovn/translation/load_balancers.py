"""Rows of load balancers. OVN spreads connections of layer 4; before a pair of HAProxy (layer 7) it only opens the way.

A balancer is put on every switch of the VPC, where the sender's host chooses the backend, and on the router, which answers
who asks for the MAC of its address, and chooses for what comes from outside.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from calabash.model.addresses import Address
from calabash.model.network import Port, Subnet
from calabash.model.network_services import CheckKind, Layer, LoadBalancer, TransportProtocol
from calabash.net.addresses.derived import checks_address
from calabash.net.objects.backends import NONE_CLOSED, closed_text
from calabash.net.ovn.northbound import naming
from calabash.net.ovn.northbound.draft import Draft
from calabash.net.ovn.northbound.rows import CLOSED, Ref
from calabash.net.ovn.translation.security_groups import ALLOW, FROM_PORT, TO_PORT, AccessEntry, add_acl, add_group
from calabash.net.ovn.translation.topology import router_of
from calabash.net.ovn.translation.view import View, gateways_of, of_one_version, socket_name

# A backend that is removed keeps no connection, except of balancers whose backends are followed (``add_closed``); and nobody
# waits for one where no backend is.
OPTIONS = {"ct_flush": "true", "reject": "true"}


def add_balancers(view: View, draft: Draft) -> None:
    for balancer in view.all(LoadBalancer).values():
        if balancer.layer is Layer.L7:
            _add_pair(view, draft, balancer)
            continue
        targets = targets_of(view, balancer)
        vip = socket_name(balancer.vip, balancer.vip_number)
        row = add_balancer(view, draft, naming.balancer(balancer.name), {vip: targets}, balancer.protocol)
        add_closed(view, draft, balancer, row)
        if balancer.check.kind is not CheckKind.NONE:
            _add_check(view, draft, balancer, row, vip)


def followed(balancer: LoadBalancer) -> bool:
    """Return True if the balancer's backends get no new connections once their programs do not listen any more."""
    return balancer.layer is Layer.L4 and balancer.check.kind is CheckKind.TCP


def add_closed(view: View, draft: Draft, balancer: LoadBalancer, row: Ref) -> None:
    """Note the closed backends of a balancer that follows them. Their connections go on, as programs may finish with these."""
    if not followed(balancer):
        return
    draft.change(row, {"options": {**OPTIONS, "ct_flush": "false"}})
    closed = view.closed.intersection((backend.port, backend.number) for backend in balancer.backends)
    if closed:
        draft.note(row, CLOSED, closed_text(closed))


def targets_of(view: View, balancer: LoadBalancer) -> str:
    """Where OVN sends what comes to it, as OVN lists it: backends of the IP version of its address; of a pair its address."""
    if balancer.layer is Layer.L7:
        served = virtual_address(view, balancer)
        return "" if served is None else socket_name(served, balancer.vip_number)
    found = []
    closed = view.closed if followed(balancer) else NONE_CLOSED
    for backend in balancer.backends:
        if (backend.port, backend.number) in closed:
            continue
        address = of_one_version(view.all(Port)[backend.port].addresses, balancer.vip.version)
        if address is not None:
            found.append(socket_name(address, backend.number))
    return ",".join(sorted(found))


def virtual_address(view: View, balancer: LoadBalancer) -> Address | None:
    """Where the pair of HAProxy of a balancer serves."""
    ports = (view.all(Port).get(name) for name in balancer.ports)
    virtual = next((port for port in ports if port is not None and port.virtual_parents), None)
    return of_one_version(virtual.addresses, balancer.vip.version) if virtual is not None else None


def add_balancer(
    view: View, draft: Draft, name: str, vips: Mapping[str, str], protocol: TransportProtocol, *, switches: bool = True
) -> Ref:
    """``vips``: ``ADDRESS:NUMBER`` to backends. Without ``switches`` it is the router's alone."""
    row = draft.add("Load_Balancer", name, {"vips": vips, "protocol": protocol.value, "options": OPTIONS})
    draft.put_into(router_of(view), "load_balancer", row)
    for subnet in view.all(Subnet).values() if switches else ():
        draft.put_into(Ref("Logical_Switch", naming.switch(subnet.name)), "load_balancer", row)
    return row


def _add_check(view: View, draft: Draft, balancer: LoadBalancer, row: Ref, vip: str) -> None:
    """Every backend's host connects to it from an address of its subnet that nobody else has."""
    sources: dict[str, str] = {}
    for backend in balancer.backends:
        port = view.all(Port)[backend.port]
        address = of_one_version(port.addresses, balancer.vip.version)
        source = _check_source(view, port, balancer.vip.version)
        if address is not None and source is not None:
            sources[_bracketed(address)] = f"{port.name}:{_bracketed(source)}"
    interval_s = max(1, math.ceil(balancer.check.interval_s))
    options = {
        "interval": interval_s,
        "timeout": interval_s,
        "success_count": 1,
        "failure_count": balancer.check.failures,
    }
    draft.add(
        "Load_Balancer_Health_Check",
        f"{row.key}:check",
        {"vip": vip, "options": {name: str(number) for name, number in options.items()}},
        under=(row, "health_check"),
    )
    draft.change(row, {"ip_port_mappings": sources})


def _check_source(view: View, port: Port, version: int) -> Address | None:
    subnet = view.subnet_of(port)
    cidr = next((cidr for cidr in subnet.cidrs if cidr.version == version), None)
    return checks_address(cidr, gateways_of(subnet)) if cidr is not None else None


def _bracketed(address: Address) -> str:
    return f"[{address}]" if address.version == 6 else str(address)


@dataclass(frozen=True, slots=True)
class AccessOffer:
    """Numbers of ports that are open to ``peer`` (``ip4.src == …``), whatever their groups say."""

    protocol: TransportProtocol
    numbers: frozenset[int]
    peer: str


def add_offer(draft: Draft, group: str, ports: Iterable[str], offer: AccessOffer) -> None:
    row = add_group(draft, group, ports)
    for number in sorted(offer.numbers):
        match = f"outport == @{group} && {offer.peer} && {offer.protocol.value}.dst == {number}"
        add_acl(draft, row, str(number), AccessEntry(TO_PORT, ALLOW, match))


def _add_pair(view: View, draft: Draft, balancer: LoadBalancer) -> None:
    """The two talk to each other and to the backends, and anybody to their virtual address."""
    served = virtual_address(view, balancer)
    if served is None:
        return
    label = balancer.name.rsplit("/", 1)[1]
    pair, backends = naming.group(view.vpc.name, "l7", label), naming.group(view.vpc.name, "lb", label)
    family = f"ip{served.version}"
    row = add_group(draft, pair, balancer.ports)
    entries: dict[str, AccessEntry] = {
        "peer-out": AccessEntry(FROM_PORT, ALLOW, f"inport == @{pair} && {family}.dst == ${pair}_{family}"),
        "peer-in": AccessEntry(TO_PORT, ALLOW, f"outport == @{pair} && {family}.src == ${pair}_{family}"),
        "backends": AccessEntry(FROM_PORT, ALLOW, f"inport == @{pair} && {family}.dst == ${backends}_{family}"),
        "clients": AccessEntry(
            TO_PORT, ALLOW, f"outport == @{pair} && {family}.dst == {served} && tcp.dst == {balancer.vip_number}"
        ),
    }
    for key, entry in entries.items():
        add_acl(draft, row, key, entry)
    numbers = frozenset(backend.number for backend in balancer.backends)
    offer = AccessOffer(TransportProtocol.TCP, numbers, f"{family}.src == ${pair}_{family}")
    add_offer(draft, backends, {backend.port for backend in balancer.backends}, offer)
    if served != balancer.vip:
        vips = {socket_name(balancer.vip, balancer.vip_number): targets_of(view, balancer)}
        add_balancer(view, draft, naming.balancer(balancer.name), vips, TransportProtocol.TCP)
