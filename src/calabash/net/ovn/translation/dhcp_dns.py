"""Rows of DHCP and DNS, which every host's own controller answers."""

from __future__ import annotations

from calabash.model.addresses import Network
from calabash.model.network import DnsRecord, Port, Subnet
from calabash.net.addresses.derived import MacUse, platform_mac
from calabash.net.ovn.northbound import naming
from calabash.net.ovn.northbound.draft import Draft
from calabash.net.ovn.northbound.rows import Ref
from calabash.net.ovn.translation.view import View, gateways_of

LEASE_S = 3600
DOMAIN = "internal"


def add_dhcp_and_dns(view: View, draft: Draft) -> None:
    served = {
        subnet.name: {f"dhcpv{cidr.version}_options": _add_dhcp(view, draft, subnet, cidr) for cidr in subnet.cidrs}
        for subnet in view.all(Subnet).values()
        if subnet.dhcp
    }
    for port in view.all(Port).values():
        options = served.get(view.subnet_of(port).name)
        if options is not None and not port.virtual_parents:
            draft.change(Ref("Logical_Switch_Port", port.name), options)
    _add_dns(view, draft)


def _add_dhcp(view: View, draft: Draft, subnet: Subnet, cidr: Network) -> Ref:
    options = _dhcp_options(view, subnet, cidr.version)
    return draft.add("DHCP_Options", f"{subnet.name}:dhcp{cidr.version}", {"cidr": str(cidr), "options": options})


def _dhcp_options(view: View, subnet: Subnet, version: int) -> dict[str, str]:
    """Strings stand in quotes within the option, or OVN takes them for something else and leaves them out."""
    gateway = next(str(address) for address in gateways_of(subnet) if address.version == version)
    mac = platform_mac(MacUse.SUBNET, view.vpc.number, subnet.number)
    domain = f'"{view.vpc.name}.{DOMAIN}"'
    if version == 6:
        return {"server_id": mac, "domain_search": domain} | ({"dns_server": gateway} if subnet.dns else {})
    return {
        "lease_time": str(LEASE_S),
        "router": gateway,
        "server_id": gateway,
        "server_mac": mac,
        "mtu": str(view.vpc.mtu_bytes),
        "domain_name": domain,
    } | ({"dns_server": gateway} if subnet.dns else {})


def _add_dns(view: View, draft: Draft) -> None:
    """One row for each subnet's ports and one for the VPC's records, so that a new port rewrites few names; every switch
    that answers has all of them. Virtual ports have names as others."""
    served = [subnet for subnet in view.all(Subnet).values() if subnet.dns]
    if not served:
        return
    names: dict[str, dict[str, str]] = {}
    for port in view.all(Port).values():
        subnet, label = port.name.rsplit("/", 1)
        host = ".".join((label, subnet.rsplit("/", 1)[1], view.vpc.name, DOMAIN))
        names.setdefault(f"{subnet}:dns", {})[host] = " ".join(map(str, port.addresses))
    hosts: dict[str, set[str]] = {}
    for record in view.all(DnsRecord).values():
        hosts.setdefault(record.host.lower(), set()).update(map(str, record.addresses))
    if hosts:
        names[f"{view.vpc.name}:dns"] = {host: " ".join(sorted(addresses)) for host, addresses in hosts.items()}
    for key, records in names.items():
        # Else a question for the other IP version of a name that it knows is never answered, and programs give up.
        row = draft.add("DNS", key, {"records": records, "options": {"ovn-owned": "true"}})
        for subnet_served in served:
            draft.put_into(Ref("Logical_Switch", naming.switch(subnet_served.name)), "dns_records", row)
