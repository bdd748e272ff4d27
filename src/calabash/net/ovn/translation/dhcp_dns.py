"""Translation of DHCP and DNS settings, which ovn-controller answers on every host."""

from __future__ import annotations

from calabash.model.addresses import Network
from calabash.model.network import DnsRecord, Port, Subnet
from calabash.net.addresses.derived import MacUse, platform_mac
from calabash.net.ovn.northbound import naming
from calabash.net.ovn.northbound.draft import Draft
from calabash.net.ovn.northbound.rows import Ref
from calabash.net.ovn.translation.view import View, router_addresses

LEASE_S = 3600
DOMAIN = "internal"


def add_dhcp_and_dns(view: View, draft: Draft) -> None:
    """Add DHCP options and DNS records of the VPC."""
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
    """Return the DHCP options of a subnet. Text values are quoted, because OVN misreads and omits them otherwise."""
    gateway = next(str(address) for address in router_addresses(subnet) if address.version == version)
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
    """Add one DNS row for the ports of each subnet and one for the records of the VPC.

    So a new port changes only the row of its subnet, and few names are rewritten. Every switch with DNS refers to all
    rows of the VPC. Virtual ports have names like other ports.
    """
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
        # Without the option, a query for the other IP version of a known name is never answered, and programs fail.
        row = draft.add("DNS", key, {"records": records, "options": {"ovn-owned": "true"}})
        for subnet_served in served:
            draft.add_to_set(Ref("Logical_Switch", naming.switch(subnet_served.name)), "dns_records", row)
