"""Translation of load balancers.

OVN distributes the connections of L4 load balancers itself. For L7 load balancers a pair of HAProxy replicas does this,
and OVN only permits the traffic. The load balancer row is attached to every switch of the VPC, so that the client's
host selects the backend. It is also attached to the router, which answers ARP for the virtual address and selects the
backend for connections from outside.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from calabash.model.addresses import Address
from calabash.model.network import Port, Subnet
from calabash.model.network_services import CheckKind, Layer, LoadBalancer, TransportProtocol
from calabash.net.addresses.derived import health_check_address
from calabash.net.objects.backends import NONE_CLOSED, format_closed
from calabash.net.ovn.northbound import naming
from calabash.net.ovn.northbound.draft import Draft
from calabash.net.ovn.northbound.rows import CLOSED, Ref
from calabash.net.ovn.translation.security_groups import ALLOW, FROM_PORT, TO_PORT, Acl, add_acl, add_group
from calabash.net.ovn.translation.topology import router_of
from calabash.net.ovn.translation.view import View, first_of_version, format_socket, router_addresses

# Connections to a removed backend are dropped, except for load balancers that track closed backends (``add_closed_backends``).
# Connections are rejected at once if there is no backend.
OPTIONS = {"ct_flush": "true", "reject": "true"}


def add_balancers(view: View, draft: Draft) -> None:
    """Add the rows of all load balancers of the VPC."""
    for balancer in view.all(LoadBalancer).values():
        if balancer.layer is Layer.L7:
            _add_pair(view, draft, balancer)
            continue
        targets = targets_of(view, balancer)
        vip = format_socket(balancer.vip, balancer.vip_number)
        row = add_balancer(view, draft, naming.balancer(balancer.name), {vip: targets}, balancer.protocol)
        add_closed_backends(view, draft, balancer, row)
        if balancer.check.kind is not CheckKind.NONE:
            _add_check(view, draft, balancer, row, vip)


def tracks_closed_backends(balancer: LoadBalancer) -> bool:
    """Return True if closed backends are left out of the load balancer, which is supported for L4 with a tcp check.

    A closed backend is one whose program has stopped listening while its port exists (``objects.backends``).
    """
    return balancer.layer is Layer.L4 and balancer.check.kind is CheckKind.TCP


def add_closed_backends(view: View, draft: Draft, balancer: LoadBalancer, row: Ref) -> None:
    """Record the closed backends of a load balancer in its row, from which the next controller reads them.

    Established connections to closed backends continue, because the programs may still be finishing their work.
    """
    if not tracks_closed_backends(balancer):
        return
    draft.change(row, {"options": {**OPTIONS, "ct_flush": "false"}})
    closed = view.closed.intersection((backend.port, backend.number) for backend in balancer.backends)
    if closed:
        draft.set_external_id(row, CLOSED, format_closed(closed))


def targets_of(view: View, balancer: LoadBalancer) -> str:
    """Return the backends of the load balancer in OVN's format, closed ones excluded.

    Only addresses of the IP version of the virtual address are included. For L7 the only backend is the address of the pair.
    """
    if balancer.layer is Layer.L7:
        virtual = virtual_address(view, balancer)
        return "" if virtual is None else format_socket(virtual, balancer.vip_number)
    found = []
    closed = view.closed if tracks_closed_backends(balancer) else NONE_CLOSED
    for backend in balancer.backends:
        if (backend.port, backend.number) in closed:
            continue
        address = first_of_version(view.all(Port)[backend.port].addresses, balancer.vip.version)
        if address is not None:
            found.append(format_socket(address, backend.number))
    return ",".join(sorted(found))


def virtual_address(view: View, balancer: LoadBalancer) -> Address | None:
    """Return the address at which the HAProxy pair of a load balancer serves, or None if its ports do not exist."""
    ports = (view.all(Port).get(name) for name in balancer.ports)
    port = next((port for port in ports if port is not None and port.virtual_parents), None)
    return first_of_version(port.addresses, balancer.vip.version) if port is not None else None


def add_balancer(
    view: View, draft: Draft, name: str, vips: Mapping[str, str], protocol: TransportProtocol, *, switches: bool = True
) -> Ref:
    """Add a load balancer row.

    Args:
        name: name of the row.
        vips: backends in OVN's format, by virtual ``ADDRESS:NUMBER``.
        switches: True to attach the row to the VPC's router and switches; False to attach it to the router only.
    """
    row = draft.add("Load_Balancer", name, {"vips": vips, "protocol": protocol.value, "options": OPTIONS})
    draft.add_to_set(router_of(view), "load_balancer", row)
    for subnet in view.all(Subnet).values() if switches else ():
        draft.add_to_set(Ref("Logical_Switch", naming.switch(subnet.name)), "load_balancer", row)
    return row


def _add_check(view: View, draft: Draft, balancer: LoadBalancer, row: Ref, vip: str) -> None:
    """Add the health check of a load balancer.

    The host of each backend makes the check: it connects to the backend from a reserved address of the subnet.

    Args:
        row: row of the load balancer.
        vip: virtual ``ADDRESS:NUMBER`` of the load balancer.
    """
    sources: dict[str, str] = {}
    for backend in balancer.backends:
        port = view.all(Port)[backend.port]
        address = first_of_version(port.addresses, balancer.vip.version)
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
    return health_check_address(cidr, router_addresses(subnet)) if cidr is not None else None


def _bracketed(address: Address) -> str:
    return f"[{address}]" if address.version == 6 else str(address)


@dataclass(frozen=True, slots=True)
class PortAccess:
    """Permission to reach some port numbers, regardless of security groups.

    Args:
        peer: match expression for the source of the permitted packets, such as ``ip4.src == 10.0.0.5``.
    """

    protocol: TransportProtocol
    numbers: frozenset[int]
    peer: str


def add_port_access(draft: Draft, group: str, ports: Iterable[str], access: PortAccess) -> None:
    """Add a port group named ``group`` that contains ``ports``, with ACLs that permit the access."""
    row = add_group(draft, group, ports)
    for number in sorted(access.numbers):
        match = f"outport == @{group} && {access.peer} && {access.protocol.value}.dst == {number}"
        add_acl(draft, row, str(number), Acl(TO_PORT, ALLOW, match))


def _add_pair(view: View, draft: Draft, balancer: LoadBalancer) -> None:
    """Add the rows of an L7 load balancer.

    ACLs permit traffic between the two replicas, from them to the backends, and from clients to the virtual address.
    """
    virtual = virtual_address(view, balancer)
    if virtual is None:
        return
    label = balancer.name.rsplit("/", 1)[1]
    pair, backends = naming.group(view.vpc.name, "l7", label), naming.group(view.vpc.name, "lb", label)
    family = f"ip{virtual.version}"
    row = add_group(draft, pair, balancer.ports)
    entries: dict[str, Acl] = {
        "peer-out": Acl(FROM_PORT, ALLOW, f"inport == @{pair} && {family}.dst == ${pair}_{family}"),
        "peer-in": Acl(TO_PORT, ALLOW, f"outport == @{pair} && {family}.src == ${pair}_{family}"),
        "backends": Acl(FROM_PORT, ALLOW, f"inport == @{pair} && {family}.dst == ${backends}_{family}"),
        "clients": Acl(
            TO_PORT, ALLOW, f"outport == @{pair} && {family}.dst == {virtual} && tcp.dst == {balancer.vip_number}"
        ),
    }
    for key, entry in entries.items():
        add_acl(draft, row, key, entry)
    numbers = frozenset(backend.number for backend in balancer.backends)
    access = PortAccess(TransportProtocol.TCP, numbers, f"{family}.src == ${pair}_{family}")
    add_port_access(draft, backends, {backend.port for backend in balancer.backends}, access)
    if virtual != balancer.vip:
        vips = {format_socket(balancer.vip, balancer.vip_number): targets_of(view, balancer)}
        add_balancer(view, draft, naming.balancer(balancer.name), vips, TransportProtocol.TCP)
