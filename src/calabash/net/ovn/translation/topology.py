"""Rows of a VPC's router, its subnets and its ports."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from calabash.model.network import NetworkGateway, NetworkRoute, Port, Subnet
from calabash.net.addresses.derived import MacUse, platform_mac
from calabash.net.ovn.northbound import naming
from calabash.net.ovn.northbound.draft import Draft
from calabash.net.ovn.northbound.rows import Ref, Value
from calabash.net.ovn.translation.view import View, gateways_of

# Without the first two, every router on a segment keeps a neighbour of every other, which is quadratic in the whole.
ROUTER_OPTIONS = {
    "dynamic_neigh_routers": "true",
    "always_learn_from_arp_request": "false",
    "mac_binding_age_threshold": "300",
}
NO_OPTIONS: Mapping[str, str] = {}


def add_router(view: View, draft: Draft) -> None:
    draft.add("Logical_Router", naming.router(view.vpc.name), {"options": ROUTER_OPTIONS})


def add_subnets(view: View, draft: Draft) -> None:
    for subnet in view.all(Subnet).values():
        switch = draft.add("Logical_Switch", naming.switch(subnet.name), {})
        addresses = gateways_of(subnet)
        networks = frozenset(
            f"{address}/{cidr.prefixlen}"
            for cidr in subnet.cidrs
            for address in addresses
            if address.version == cidr.version
        )
        add_router_port(
            view,
            draft,
            subnet.name,
            {
                "mac": platform_mac(MacUse.SUBNET, view.vpc.number, subnet.number),
                "networks": networks,
                "ipv6_ra_configs": _advertised(view, subnet),
            },
        )
        add_switch_port_to_router(draft, subnet.name, switch)


def add_router_port(view: View, draft: Draft, network: str, columns: dict[str, Value]) -> Ref:
    under = (router_of(view), "ports")
    return draft.add("Logical_Router_Port", naming.router_port(network), columns, under=under)


def add_gateway_port(
    view: View, draft: Draft, network: str, columns: dict[str, Value], hosts: Iterator[tuple[str, int]]
) -> Ref:
    """A router's port that is at one gateway host at a time."""
    port = add_router_port(view, draft, network, columns)
    for host, priority in hosts:
        chassis: dict[str, Value] = {"chassis_name": host, "priority": priority}
        draft.add("Gateway_Chassis", f"{port.key}:{host}", chassis, under=(port, "gateway_chassis"))
    return port


def add_switch_port_to_router(draft: Draft, network: str, switch: Ref, options: Mapping[str, str] = NO_OPTIONS) -> Ref:
    """The switch's end of a router's port."""
    columns: dict[str, Value] = {
        "type": "router",
        "addresses": frozenset(("router",)),
        "options": {"router-port": naming.router_port(network), **options},
    }
    return draft.add("Logical_Switch_Port", naming.switch_port(network), columns, under=(switch, "ports"))


def add_localnet_port(draft: Draft, network: str, switch: Ref, physical: str, vlan: int) -> Ref:
    """A switch's end of the provider's network; ``vlan`` 0: untagged."""
    columns: dict[str, Value] = {
        "type": "localnet",
        "addresses": frozenset(("unknown",)),
        "options": {"network_name": physical},
        "tag": vlan or None,
    }
    return draft.add("Logical_Switch_Port", naming.localnet_port(network), columns, under=(switch, "ports"))


def router_of(view: View) -> Ref:
    return Ref("Logical_Router", naming.router(view.vpc.name))


def _advertised(view: View, subnet: Subnet) -> dict[str, str]:
    """The router advertises itself where DHCPv6 hands out addresses; nobody makes one up, as port security drops it."""
    if not subnet.dhcp or not any(cidr.version == 6 for cidr in subnet.cidrs):
        return {}
    return {"address_mode": "dhcpv6_stateful", "send_periodic": "true", "mtu": str(view.vpc.mtu_bytes)}


def add_ports(view: View, draft: Draft) -> None:
    ports = view.all(Port)
    also: dict[str, list[str]] = {}
    for port in ports.values():
        for parent in port.virtual_parents:
            also.setdefault(parent, []).extend(str(address) for address in port.addresses)
    for route in view.all(NetworkRoute).values():  # a port that packets are sent on to forwards them, and answers
        forwarder = view.own.addresses.get(int(route.next_hop)) if route.next_hop is not None else None
        if forwarder is not None:
            also.setdefault(forwarder, []).append(str(route.prefix))
    appliances = {name for gateway in view.all(NetworkGateway).values() for name in gateway.ports}
    for port in ports.values():
        draft.add(
            "Logical_Switch_Port",
            port.name,
            _port_columns(port, tuple(sorted(set(also.get(port.name, ())))), forwards=port.name in appliances),
            under=(Ref("Logical_Switch", naming.switch(view.subnet_of(port).name)), "ports"),
        )


def _port_columns(port: Port, also: tuple[str, ...], *, forwards: bool) -> dict[str, Value]:
    """``also``: addresses that the port may have beside its own. Who forwards sends with others' addresses, never MACs."""
    addresses = " ".join((port.mac, *map(str, port.addresses)))
    if port.virtual_parents:
        return {
            "type": "virtual",
            "addresses": frozenset((addresses,)),
            "options": {
                "virtual-ip": str(port.addresses[0]),
                "virtual-parents": ",".join(sorted(port.virtual_parents)),
            },
        }
    security = port.mac if forwards else " ".join((addresses, *also))
    return {"addresses": frozenset((addresses,)), "port_security": frozenset((security,))}
