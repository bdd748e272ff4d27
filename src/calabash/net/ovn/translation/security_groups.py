"""Rows of security groups: port groups with access lists.

Every port of a VPC is in its drop group before any host binds it. What no rule lets through is dropped there, of every
Ethernet type; ARP passes, as port security binds it to the port's own addresses, and IPv6's neighbour discovery does in OVN
by itself. A port's groups only ever let through, so that their order does not matter.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from calabash.model.network import Direction, Port, SecurityGroup, SecurityRule, Subnet
from calabash.model.network_services import TransportProtocol
from calabash.net.ovn.northbound import naming
from calabash.net.ovn.northbound.draft import Draft
from calabash.net.ovn.northbound.rows import Ref
from calabash.net.ovn.translation.view import View, gateways_of, one_of

DROP, SERVE, ALLOW, GUARD = 1000, 1001, 1002, 1900  # priorities, the higher first
FROM_PORT, TO_PORT = "from-lport", "to-lport"
DHCP_SERVER = "udp.src == {67, 547}"
REDIRECT = "icmp6.type == 137"


@dataclass(frozen=True, slots=True)
class AccessEntry:
    """One entry of an access list."""

    direction: str
    priority: int
    match: str
    action: str = "allow-related"


def add_groups(view: View, draft: Draft) -> None:
    ports = view.all(Port)
    drop = naming.drop_group(view.vpc.name)
    row = add_group(draft, drop, ports)
    for direction, side in ((FROM_PORT, "inport"), (TO_PORT, "outport")):
        member = f"{side} == @{drop}"
        add_acl(draft, row, "drop", AccessEntry(direction, DROP, member, "drop"))
        add_acl(draft, row, "arp", AccessEntry(direction, SERVE, f"{member} && arp", "allow"))
    # Older OVN lets all that comes from port 53 of UDP through to ports of a switch with DNS, before any list (CVE-2025-0650):
    # nobody may send it. Answers of a port's own DNS server do not come here, as they belong to a connection let through.
    add_acl(draft, row, "dns-guard", AccessEntry(FROM_PORT, GUARD, f"inport == @{drop} && udp.src == 53", "drop"))
    _add_configuration_guards(draft, row, drop)
    for key, match in _served(view):
        add_acl(draft, row, key, AccessEntry(FROM_PORT, SERVE, f"inport == @{drop} && {match}"))
    members: dict[str, list[str]] = {name: [] for name in view.all(SecurityGroup)}
    for port in ports.values():
        for name in port.security_groups or (f"{view.vpc.name}/default",):
            members[name].append(port.name)
    for group in view.all(SecurityGroup).values():
        _add_security_group(draft, group, members[group.name])


def _add_configuration_guards(draft: Draft, row: Ref, drop: str) -> None:
    """Add entries that keep ports from configuring other ports, whatever their groups say.

    No port sends as a DHCP or DHCPv6 server, and none receives from such a server outside; OVN lets its own answers through
    before these entries. No port sends ICMPv6 redirects. Router advertisements cannot be dropped here: OVN lets them through
    before every entry, so that the agent has its ports ignore them (``links.interfaces``).
    """
    for direction, side in ((FROM_PORT, "inport"), (TO_PORT, "outport")):
        add_acl(draft, row, "dhcp-guard", AccessEntry(direction, GUARD, f"{side} == @{drop} && {DHCP_SERVER}", "drop"))
    add_acl(draft, row, "redirect-guard", AccessEntry(FROM_PORT, GUARD, f"inport == @{drop} && {REDIRECT}", "drop"))


def add_group(draft: Draft, name: str, ports: Iterable[str]) -> Ref:
    """A port group of ports, by name."""
    row = draft.add("Port_Group", name, {})
    for port in ports:
        draft.put_into(row, "ports", Ref("Logical_Switch_Port", port))
    return row


def add_acl(draft: Draft, group: Ref, key: str, entry: AccessEntry) -> None:
    """An entry of a group's list; ``key`` tells it from others of its direction."""
    draft.add(
        "ACL",
        f"{group.key}:{entry.direction}:{key}",
        {"direction": entry.direction, "priority": entry.priority, "match": entry.match, "action": entry.action},
        under=(group, "acls"),
    )


def _served(view: View) -> list[tuple[str, str]]:
    """What ports may ask the platform itself, whatever their groups say."""
    subnets = view.all(Subnet).values()
    served = []
    if any(subnet.dhcp for subnet in subnets):
        routers = [
            address for subnet in subnets if subnet.dhcp for address in gateways_of(subnet) if address.version == 4
        ]
        to = "{" + ", ".join(sorted({"255.255.255.255", *map(str, routers)})) + "}"
        served.append(("dhcp4", f"ip4.dst == {to} && udp.src == 68 && udp.dst == 67"))
        served.append(("dhcp6", "ip6.dst == ff02::1:2 && udp.src == 546 && udp.dst == 547"))
    for version in (4, 6):
        servers = [
            address for subnet in subnets if subnet.dns for address in gateways_of(subnet) if address.version == version
        ]
        if servers:
            served.append((f"dns{version}", f"ip{version}.dst == {one_of(servers)} && udp.dst == 53"))
    return served


def _add_security_group(draft: Draft, group: SecurityGroup, ports: list[str]) -> None:
    name = naming.security_group(group.name)
    row = add_group(draft, name, ports)
    for number, rule in enumerate(group.rules):
        ingress = rule.direction is Direction.INGRESS
        member = f"{'outport' if ingress else 'inport'} == @{name}"
        match = " && ".join((member, *_matches(rule)))
        add_acl(draft, row, str(number), AccessEntry(TO_PORT if ingress else FROM_PORT, ALLOW, match))


def _matches(rule: SecurityRule) -> tuple[str, ...]:
    return tuple(part for part in (_peer(rule), protocol_match(rule.protocol, rule.ports, _version(rule))) if part)


def _version(rule: SecurityRule) -> int | None:
    return rule.peer.version if rule.peer is not None else None


def _peer(rule: SecurityRule) -> str:
    """Who is at the other end. A rule without any is nobody's."""
    end = "src" if rule.direction is Direction.INGRESS else "dst"
    if rule.peer_group:
        name = naming.security_group(rule.peer_group)
        return f"(ip4.{end} == ${name}_ip4 || ip6.{end} == ${name}_ip6)"
    if rule.peer is None:
        return "0"
    family = f"ip{rule.peer.version}"
    return family if rule.peer.prefixlen == 0 else f"{family}.{end} == {rule.peer}"


def protocol_match(protocol: TransportProtocol, ports: tuple[int, int], version: int | None) -> str:
    """``ports`` are of the receiver; (0, 0) all."""
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
