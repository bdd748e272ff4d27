"""Translation of gateways and NAT rules: the router port at the uplink, address translation, and the default route.

An NFV gateway consists of two ports in the VPC and a virtual port that moves between them. The default route leads to the
virtual port, and the replicas translate addresses. The switch of the uplink and its filters are built by ``platform_rows``.
"""

from __future__ import annotations

from ipaddress import ip_network

from calabash.model.addresses import Address
from calabash.model.network import Eip, GatewayKind, NatKind, NatRule, NetworkGateway, Port, Uplink
from calabash.net.addresses.derived import MacUse, outside_mac, platform_mac
from calabash.net.ovn.northbound import naming
from calabash.net.ovn.northbound.draft import Draft
from calabash.net.ovn.northbound.rows import Ref, Value
from calabash.net.ovn.translation.load_balancers import add_balancer
from calabash.net.ovn.translation.routes import add_forgery_guards, add_guard, add_route
from calabash.net.ovn.translation.security_groups import ALLOW, FROM_PORT, TO_PORT, Acl, add_acl, add_group
from calabash.net.ovn.translation.topology import add_gateway_port, router_of
from calabash.net.ovn.translation.view import View, filter_version, first_of_version, format_socket, match_set

ANYWHERE = {4: ip_network("0.0.0.0/0"), 6: ip_network("::/0")}


def add_gateway(view: View, draft: Draft) -> None:
    """Add the gateway of the VPC and its NAT rules."""
    for gateway in view.all(NetworkGateway).values():
        uplink = view.networks.find(Uplink, gateway.uplink)
        if gateway.kind is GatewayKind.NFV:
            _add_nfv(view, draft, gateway)
        elif uplink is not None and gateway.address is not None:
            port = _add_uplink(view, draft, gateway, uplink)
            _add_translations(view, draft, gateway, uplink, port)


def _add_uplink(view: View, draft: Draft, gateway: NetworkGateway, uplink: Uplink) -> Ref:
    columns: dict[str, Value] = {
        "mac": platform_mac(MacUse.UPLINK, view.vpc.number, uplink.number),
        "networks": frozenset((f"{gateway.address}/{uplink.cidr.prefixlen}",)),
        "options": {"gateway_mtu": str(view.vpc.mtu_bytes)},  # answers larger packets with an ICMP error
    }
    hosts = view.priorities(uplink.hosts, view.vpc.number)
    port = add_gateway_port(view, draft, naming.uplink_link(view.vpc.name), columns, hosts)
    add_route(view, draft, f"{gateway.name}:gateway", ANYWHERE[uplink.cidr.version], (uplink.gateway, port))
    # OVN before the fix of CVE-2025-0650 admits packets from UDP port 53 to switches with DNS: admit replies only.
    add_guard(view, draft, f"{port.key}:dns", f'inport == "{port.key}" && udp.src == 53 && !ct.rpl')
    add_forgery_guards(view, draft, port)
    return port


def _add_translations(view: View, draft: Draft, gateway: NetworkGateway, uplink: Uplink, port: Ref) -> None:
    version = uplink.cidr.version
    if gateway.snat and gateway.address is not None:
        add_snat(view, draft, gateway.name, gateway.address, port)
    outside = {name: eip.address for name, eip in view.all(Eip).items()} | {gateway.name: gateway.address}
    for rule in view.all(NatRule).values():
        address, inside_port = outside.get(rule.eip), view.all(Port)[rule.port]
        inside = first_of_version(inside_port.addresses, version)
        if address is None or inside is None:
            continue
        if rule.kind is NatKind.DNAT:
            vip, target = format_socket(address, rule.outside_number), format_socket(inside, rule.inside_number)
            add_balancer(view, draft, naming.translation(rule.name), {vip: target}, rule.protocol)
            continue
        columns: dict[str, Value] = {"type": "dnat_and_snat", "external_ip": str(address), "logical_ip": str(inside)}
        if rule.distributed:
            columns |= {"logical_port": inside_port.name, "external_mac": outside_mac(uplink.number, address)}
        _add_nat(view, draft, f"{rule.name}:fip", columns, port)


def _add_nat(view: View, draft: Draft, key: str, columns: dict[str, Value], port: Ref) -> None:
    draft.add("NAT", key, {**columns, "gateway_port": port}, under=(router_of(view), "nat"))


def add_snat(view: View, draft: Draft, key: str, external: Address, port: Ref) -> None:
    """Add NAT rows that translate every source address of the VPC to one external address.

    Only ranges of the IP version of the external address are translated.

    Args:
        key: begin of the keys of the rows.
        external: the external address.
        port: router port; only packets that leave by it are translated.
    """
    for cidr in filter_version(view.vpc.cidrs, external.version):
        columns: dict[str, Value] = {"type": "snat", "external_ip": str(external), "logical_ip": str(cidr)}
        _add_nat(view, draft, f"{key}:snat:{cidr}", columns, port)


def _add_nfv(view: View, draft: Draft, gateway: NetworkGateway) -> None:
    """Add the default route to an NFV gateway, and ACLs that let its ports forward packets of other ports.

    The ACLs permit all IPv4 packets, because the nftables ruleset of the replicas filters them.
    """
    ports = view.all(Port)
    members = [name for name in gateway.ports if name in ports]
    virtual = next((ports[name] for name in members if ports[name].virtual_parents), None)
    next_hop = first_of_version(virtual.addresses, 4) if virtual is not None else None
    if next_hop is None:
        return
    add_route(view, draft, f"{gateway.name}:gateway", ANYWHERE[4], (next_hop, None))
    name = naming.group(view.vpc.name, "nfv")
    group = add_group(draft, name, members)
    inside = match_set(filter_version(view.vpc.cidrs, 4))
    add_acl(draft, group, "all", Acl(FROM_PORT, ALLOW, f"inport == @{name} && ip4"))
    add_acl(draft, group, "all", Acl(TO_PORT, ALLOW, f"outport == @{name} && ip4.src == {inside}"))
