"""Rows of a VPC's router, its subnets and its ports."""

from __future__ import annotations

from calabash.model.network import NetworkGateway, Port, Subnet
from calabash.net import naming
from calabash.net.drafting import Draft
from calabash.net.rows import Ref, Value
from calabash.net.transit import MacUse, platform_mac
from calabash.net.view import View, gateways_of

# Without the first two, every router on a segment keeps a neighbour of every other, which is quadratic in the whole.
ROUTER_OPTIONS = {
    "dynamic_neigh_routers": "true",
    "always_learn_from_arp_request": "false",
    "mac_binding_age_threshold": "300",
}


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
        join(
            view,
            draft,
            subnet.name,
            switch,
            {
                "mac": platform_mac(MacUse.SUBNET, view.vpc.number, subnet.number),
                "networks": networks,
                "ipv6_ra_configs": _advertised(view, subnet),
            },
        )


def join(view: View, draft: Draft, network: str, switch: Ref, router_port: dict[str, Value]) -> Ref:
    """A pair of ports between the VPC's router and a switch of the VPC's; returns the router's."""
    port = add_router_port(view, draft, network, router_port)
    draft.add(
        "Logical_Switch_Port",
        naming.switch_port(network),
        {
            "type": "router",
            "addresses": frozenset(("router",)),
            "options": {"router-port": naming.router_port(network)},
        },
        under=(switch, "ports"),
    )
    return port


def add_router_port(view: View, draft: Draft, network: str, columns: dict[str, Value]) -> Ref:
    return draft.add(
        "Logical_Router_Port",
        naming.router_port(network),
        columns,
        under=(Ref("Logical_Router", naming.router(view.vpc.name)), "ports"),
    )


def _advertised(view: View, subnet: Subnet) -> dict[str, str]:
    """The router advertises itself where DHCPv6 hands out addresses; nobody makes one up, as port security drops it."""
    if not subnet.dhcp or not any(cidr.version == 6 for cidr in subnet.cidrs):
        return {}
    return {"address_mode": "dhcpv6_stateful", "send_periodic": "true", "mtu": str(view.vpc.mtu_bytes)}


def add_ports(view: View, draft: Draft) -> None:
    ports = view.all(Port)
    virtual: dict[str, list[str]] = {}
    for port in ports.values():
        for parent in port.virtual_parents:
            virtual.setdefault(parent, []).extend(str(address) for address in port.addresses)
    appliances = {name for gateway in view.all(NetworkGateway).values() for name in gateway.ports}
    for port in ports.values():
        draft.add(
            "Logical_Switch_Port",
            port.name,
            _port_columns(port, tuple(virtual.get(port.name, ())), forwards=port.name in appliances),
            under=(Ref("Logical_Switch", naming.switch(view.subnet_of(port).name)), "ports"),
        )


def _port_columns(port: Port, also: tuple[str, ...], *, forwards: bool) -> dict[str, Value]:
    """``also``: virtual addresses that may be the port's. A port that forwards sends with others' addresses, never MACs."""
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
