"""Translation of security groups to port groups with ACLs.

Every port of a VPC is in the *drop group* of the VPC before a host binds the port. The ACLs of this port group drop
packets of every Ethernet type that no security group permits. ARP is permitted, because port security already restricts
it to the port's own addresses. OVN itself permits IPv6 neighbour discovery. Security groups only permit traffic and
never forbid it, so their order does not matter.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from calabash.model.network import Direction, Port, SecurityGroup, SecurityRule, Subnet
from calabash.model.network_services import TransportProtocol
from calabash.net.ovn.northbound import naming
from calabash.net.ovn.northbound.draft import Draft
from calabash.net.ovn.northbound.rows import Ref
from calabash.net.ovn.translation.view import View, match_set, router_addresses

DROP, SERVE, ALLOW, GUARD = 1000, 1001, 1002, 1900  # ACL priorities
FROM_PORT, TO_PORT = "from-lport", "to-lport"
DHCP_SERVER = "udp.src == {67, 547}"
REDIRECT = "icmp6.type == 137"


@dataclass(frozen=True, slots=True)
class Acl:
    """One ACL of a port group or switch.

    Args:
        direction: FROM_PORT for packets that a port sends, TO_PORT for packets that it receives.
        priority: of the ACLs that match a packet, that with the highest priority applies.
        match: match expression of OVN.
        action: action of OVN; "allow-related" also permits the replies.
    """

    direction: str
    priority: int
    match: str
    action: str = "allow-related"


def add_groups(view: View, draft: Draft) -> None:
    """Add the drop group, ACLs for services of the platform, and the security groups of the VPC."""
    ports = view.all(Port)
    drop = naming.drop_group(view.vpc.name)
    row = add_group(draft, drop, ports)
    for direction, side in ((FROM_PORT, "inport"), (TO_PORT, "outport")):
        member = f"{side} == @{drop}"
        add_acl(draft, row, "drop", Acl(direction, DROP, member, "drop"))
        add_acl(draft, row, "arp", Acl(direction, SERVE, f"{member} && arp", "allow"))
    # OVN before the fix of CVE-2025-0650 admits packets from UDP port 53 to ports of a switch with DNS before any ACL: drop
    # them at the sender. Replies of a DNS server on a port are not affected, because they belong to an admitted connection.
    add_acl(draft, row, "dns-guard", Acl(FROM_PORT, GUARD, f"inport == @{drop} && udp.src == 53", "drop"))
    _add_configuration_guards(draft, row, drop)
    for key, match in _platform_services(view):
        add_acl(draft, row, key, Acl(FROM_PORT, SERVE, f"inport == @{drop} && {match}"))
    members: dict[str, list[str]] = {name: [] for name in view.all(SecurityGroup)}
    for port in ports.values():
        for name in port.security_groups or (f"{view.vpc.name}/default",):
            members[name].append(port.name)
    for group in view.all(SecurityGroup).values():
        _add_security_group(draft, group, members[group.name])


def _add_configuration_guards(draft: Draft, row: Ref, drop: str) -> None:
    """Add ACLs that prevent ports from configuring other ports, regardless of security groups.

    A port may not act as a DHCP or DHCPv6 server, and does not receive replies of such a server. This does not affect
    OVN's own DHCP replies, which are admitted before these ACLs. A port may not send ICMPv6 redirects. Router
    advertisements cannot be dropped here, because OVN admits them before every ACL; the node agent makes its ports
    ignore them (``links.interfaces``).
    """
    for direction, side in ((FROM_PORT, "inport"), (TO_PORT, "outport")):
        add_acl(draft, row, "dhcp-guard", Acl(direction, GUARD, f"{side} == @{drop} && {DHCP_SERVER}", "drop"))
    add_acl(draft, row, "redirect-guard", Acl(FROM_PORT, GUARD, f"inport == @{drop} && {REDIRECT}", "drop"))


def add_group(draft: Draft, name: str, ports: Iterable[str]) -> Ref:
    """Add a port group with the named ports."""
    row = draft.add("Port_Group", name, {})
    for port in ports:
        draft.add_to_set(row, "ports", Ref("Logical_Switch_Port", port))
    return row


def add_acl(draft: Draft, group: Ref, key: str, entry: Acl) -> None:
    """Add an ACL to a port group or switch; ``key`` is unique within its direction."""
    draft.add(
        "ACL",
        f"{group.key}:{entry.direction}:{key}",
        {"direction": entry.direction, "priority": entry.priority, "match": entry.match, "action": entry.action},
        under=(group, "acls"),
    )


def _platform_services(view: View) -> list[tuple[str, str]]:
    """Return the platform's services (DHCP, DNS) that all ports may use: pairs of ACL key and match expression."""
    subnets = view.all(Subnet).values()
    services = []
    if any(subnet.dhcp for subnet in subnets):
        routers = [
            address for subnet in subnets if subnet.dhcp for address in router_addresses(subnet) if address.version == 4
        ]
        to = "{" + ", ".join(sorted({"255.255.255.255", *map(str, routers)})) + "}"
        services.append(("dhcp4", f"ip4.dst == {to} && udp.src == 68 && udp.dst == 67"))
        services.append(("dhcp6", "ip6.dst == ff02::1:2 && udp.src == 546 && udp.dst == 547"))
    for version in (4, 6):
        servers = [
            address
            for subnet in subnets
            if subnet.dns
            for address in router_addresses(subnet)
            if address.version == version
        ]
        if servers:
            services.append((f"dns{version}", f"ip{version}.dst == {match_set(servers)} && udp.dst == 53"))
    return services


def _add_security_group(draft: Draft, group: SecurityGroup, ports: list[str]) -> None:
    name = naming.security_group(group.name)
    row = add_group(draft, name, ports)
    for number, rule in enumerate(group.rules):
        ingress = rule.direction is Direction.INGRESS
        member = f"{'outport' if ingress else 'inport'} == @{name}"
        match = " && ".join((member, *_matches(rule)))
        add_acl(draft, row, str(number), Acl(TO_PORT if ingress else FROM_PORT, ALLOW, match))


def _matches(rule: SecurityRule) -> tuple[str, ...]:
    return tuple(part for part in (_peer(rule), protocol_match(rule.protocol, rule.ports, _version(rule))) if part)


def _version(rule: SecurityRule) -> int | None:
    return rule.peer.version if rule.peer is not None else None


def _peer(rule: SecurityRule) -> str:
    """Return the match expression for the peer of a rule; "0", which matches nothing, for a rule without a peer."""
    end = "src" if rule.direction is Direction.INGRESS else "dst"
    if rule.peer_group:
        name = naming.security_group(rule.peer_group)
        return f"(ip4.{end} == ${name}_ip4 || ip6.{end} == ${name}_ip6)"
    if rule.peer is None:
        return "0"
    family = f"ip{rule.peer.version}"
    return family if rule.peer.prefixlen == 0 else f"{family}.{end} == {rule.peer}"


def protocol_match(protocol: TransportProtocol, ports: tuple[int, int], version: int | None) -> str:
    """Return the match expression for a protocol and a range of destination port numbers; "" for any protocol.

    Args:
        ports: first and last port number; (0, 0) matches all.
        version: IP version, which is used for ICMP; None for both.
    """
    if protocol is TransportProtocol.ANY:
        return ""
    if protocol is TransportProtocol.ICMP:
        return {4: "icmp4", 6: "icmp6", None: "(icmp4 || icmp6)"}[version]
    first, last = ports
    if (first, last) == (0, 0):
        return protocol.value
    if first == last:
        return f"{protocol.value}.dst == {first}"
    return f"{protocol.value}.dst >= {first} && {protocol.value}.dst <= {last}"
