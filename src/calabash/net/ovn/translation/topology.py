"""Translation of the router, subnets and ports of a VPC to logical routers, switches and their ports."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from calabash.model.network import NetworkGateway, NetworkRoute, Port, Subnet
from calabash.net.addresses.derived import MacUse, platform_mac
from calabash.net.ovn.northbound import naming
from calabash.net.ovn.northbound.draft import Draft
from calabash.net.ovn.northbound.rows import Ref, Value
from calabash.net.ovn.translation.view import View, router_addresses

# Without the first two options, every router on a segment stores a neighbour entry for each other router.
ROUTER_OPTIONS = {
    "dynamic_neigh_routers": "true",
    "always_learn_from_arp_request": "false",
    "mac_binding_age_threshold": "300",
}
NO_OPTIONS: Mapping[str, str] = {}


def add_router(view: View, draft: Draft) -> None:
    """Add the logical router of the VPC."""
    draft.add("Logical_Router", naming.router(view.vpc.name), {"options": ROUTER_OPTIONS})


def add_subnets(view: View, draft: Draft) -> None:
    """Add a logical switch for each subnet, joined to the router."""
    for subnet in view.all(Subnet).values():
        switch = draft.add("Logical_Switch", naming.switch(subnet.name), {})
        addresses = router_addresses(subnet)
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
                "ipv6_ra_configs": _ra_configs(view, subnet),
            },
        )
        add_switch_port_to_router(draft, subnet.name, switch)


def add_router_port(view: View, draft: Draft, network: str, columns: dict[str, Value]) -> Ref:
    """Add a port of the VPC's router.

    Args:
        network: name of the link (``naming``) to which the port belongs.
        columns: values that differ from the defaults of the table.
    """
    under = (router_of(view), "ports")
    return draft.add("Logical_Router_Port", naming.router_port(network), columns, under=under)


def add_gateway_port(
    view: View, draft: Draft, network: str, columns: dict[str, Value], hosts: Iterator[tuple[str, int]]
) -> Ref:
    """Add a router port that is active on one gateway host at a time.

    Args:
        network: name of the link (``naming``) to which the port belongs.
        columns: values that differ from the defaults of the table.
        hosts: gateway hosts with priorities; the port is active on the live host with the highest priority.
    """
    port = add_router_port(view, draft, network, columns)
    for host, priority in hosts:
        chassis: dict[str, Value] = {"chassis_name": host, "priority": priority}
        draft.add("Gateway_Chassis", f"{port.key}:{host}", chassis, under=(port, "gateway_chassis"))
    return port


def add_switch_port_to_router(draft: Draft, network: str, switch: Ref, options: Mapping[str, str] = NO_OPTIONS) -> Ref:
    """Add the port of a switch that joins the switch to the router port of the link ``network``."""
    columns: dict[str, Value] = {
        "type": "router",
        "addresses": frozenset(("router",)),
        "options": {"router-port": naming.router_port(network), **options},
    }
    return draft.add("Logical_Switch_Port", naming.switch_port(network), columns, under=(switch, "ports"))


def add_localnet_port(draft: Draft, network: str, switch: Ref, physical: str, vlan: int) -> Ref:
    """Add the switch port that joins a switch to the provider network.

    Args:
        network: name of the link (``naming``) to which the port belongs.
        physical: name of the provider's physical network.
        vlan: number of the VLAN; 0 for untagged packets.
    """
    columns: dict[str, Value] = {
        "type": "localnet",
        "addresses": frozenset(("unknown",)),
        "options": {"network_name": physical},
        "tag": vlan or None,
    }
    return draft.add("Logical_Switch_Port", naming.localnet_port(network), columns, under=(switch, "ports"))


def router_of(view: View) -> Ref:
    """Return a reference to the logical router of the VPC."""
    return Ref("Logical_Router", naming.router(view.vpc.name))


def _ra_configs(view: View, subnet: Subnet) -> dict[str, str]:
    """Return the IPv6 router advertisement settings of a subnet; empty without DHCP or without an IPv6 range.

    Addresses come from DHCPv6 only: port security drops packets from addresses that a host chooses itself.
    """
    if not subnet.dhcp or not any(cidr.version == 6 for cidr in subnet.cidrs):
        return {}
    return {"address_mode": "dhcpv6_stateful", "send_periodic": "true", "mtu": str(view.vpc.mtu_bytes)}


def add_ports(view: View, draft: Draft) -> None:
    """Add a logical switch port for each port, with its port security."""
    ports = view.all(Port)
    extra: dict[str, list[str]] = {}
    for port in ports.values():
        for parent in port.virtual_parents:
            extra.setdefault(parent, []).extend(str(address) for address in port.addresses)
    for route in view.all(NetworkRoute).values():  # the next hop of a route forwards packets with these addresses
        forwarder = view.objects.addresses.get(int(route.next_hop)) if route.next_hop is not None else None
        if forwarder is not None:
            extra.setdefault(forwarder, []).append(str(route.prefix))
    appliances = {name for gateway in view.all(NetworkGateway).values() for name in gateway.ports}
    for port in ports.values():
        draft.add(
            "Logical_Switch_Port",
            port.name,
            _port_columns(port, tuple(sorted(set(extra.get(port.name, ())))), forwards=port.name in appliances),
            under=(Ref("Logical_Switch", naming.switch(view.subnet_of(port).name)), "ports"),
        )


def _port_columns(port: Port, extra: tuple[str, ...], *, forwards: bool) -> dict[str, Value]:
    """Return the columns of a switch port.

    Args:
        extra: addresses that the port may use besides its own, such as the address of a virtual port.
        forwards: True if the port forwards packets with other source addresses; port security then checks only the MAC.
    """
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
    security = port.mac if forwards else " ".join((addresses, *extra))
    return {"addresses": frozenset((addresses,)), "port_security": frozenset((security,))}
