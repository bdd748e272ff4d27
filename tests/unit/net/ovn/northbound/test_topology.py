"""Rows of routers, subnets, ports, groups, DHCP and DNS."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

import pytest
from msgspec.structs import replace
from tests.unit.net.network_builders import build_networks, port, subnet, vpc

from calabash.model.network import Direction, DnsRecord, Port, SecurityGroup, SecurityRule
from calabash.model.network_services import TransportProtocol
from calabash.net.ovn.northbound.rows import Columns, Ref, Rows
from calabash.net.ovn.northbound.tables import TABLES
from calabash.net.ovn.translation.view import NetworkHosts
from calabash.net.ovn.translation.vpc import vpc_rows
from calabash.net.store.networks import Networks

BASE = (
    vpc("red", "10.0.0.0/16", "fd00::/56"),
    subnet("red/a", "10.0.1.0/24", "fd00::/64", served=True),
    subnet("red/b", "10.0.2.0/24"),
)


def rows_of(networks: Networks, vpc_name: str = "red") -> Rows:
    return vpc_rows(networks, vpc_name, hosts=NetworkHosts())


def acls(rows: Rows, group: str) -> dict[str, Columns]:
    """Return the ACLs of a port group, by key without the name of the group."""
    members = rows[Ref("Port_Group", group)]["acls"]
    assert isinstance(members, frozenset)
    found = {row.key.removeprefix(f"{group}:"): rows[row] for row in members if isinstance(row, Ref)}
    assert len(found) == len(members)
    return found


def test_missing_vpc_has_no_rows() -> None:
    assert rows_of(Networks()) == {}


def test_router_stores_no_neighbour_entries_of_unused_routers() -> None:
    options = rows_of(build_networks(*BASE))[Ref("Logical_Router", "cb-red")]["options"]
    assert options == {
        "dynamic_neigh_routers": "true",
        "always_learn_from_arp_request": "false",
        "mac_binding_age_threshold": "300",
    }


def test_subnet_is_a_switch_joined_to_the_router_of_the_vpc() -> None:
    rows = rows_of(build_networks(*BASE))
    inside, outside = Ref("Logical_Switch_Port", "red/a:switch"), Ref("Logical_Router_Port", "red/a:router")
    assert rows[Ref("Logical_Switch", "cb-red/a")]["ports"] == frozenset((inside,))
    assert rows[inside]["options"] == {"router-port": "red/a:router"}
    assert rows[outside]["networks"] == frozenset(("10.0.1.1/24", "fd00::1/64"))
    assert rows[outside]["mac"] == "0e:01:00:01:00:01"
    assert outside in rows[Ref("Logical_Router", "cb-red")]["ports"]  # type: ignore[operator]


def test_port_security_admits_only_addresses_of_the_port() -> None:
    rows = rows_of(build_networks(*BASE, port("red/a/web", "10.0.1.11", "fd00::11", mac="0a:00:00:00:00:aa")))
    row = rows[Ref("Logical_Switch_Port", "red/a/web")]
    assert row["addresses"] == row["port_security"] == frozenset(("0a:00:00:00:00:aa 10.0.1.11 fd00::11",))


def test_parents_of_a_virtual_port_may_use_its_address() -> None:
    parents = ("red/b/one", "red/b/two")
    shared = Port(name="red/b/vip", addresses=(ip_address("10.0.2.100"),), virtual_parents=parents)
    rows = rows_of(build_networks(*BASE, *map(port, parents), shared))
    virtual = rows[Ref("Logical_Switch_Port", "red/b/vip")]
    assert virtual["type"] == "virtual"
    assert virtual["options"] == {"virtual-ip": "10.0.2.100", "virtual-parents": "red/b/one,red/b/two"}
    for parent in parents:
        security = rows[Ref("Logical_Switch_Port", parent)]["port_security"]
        assert isinstance(security, frozenset)
        assert [str(item).rsplit(" ", 1)[1] for item in security] == ["10.0.2.100"]


def test_every_port_is_in_the_drop_group() -> None:
    open_to_all = SecurityRule(direction=Direction.INGRESS, peer=ip_network("0.0.0.0/0"))
    networks = build_networks(
        *BASE,
        SecurityGroup(name="red/open-1", rules=(open_to_all,)),
        port("red/a/one"),
        port("red/b/two", groups=("red/open-1",)),
    )
    rows = rows_of(networks)
    everyone = frozenset(Ref("Logical_Switch_Port", name) for name in ("red/a/one", "red/b/two"))
    assert rows[Ref("Port_Group", "cb.red.drop")]["ports"] == everyone
    found = acls(rows, "cb.red.drop")
    for direction, side in (("from-lport", "inport"), ("to-lport", "outport")):
        drop = found[f"{direction}:drop"]
        assert (drop["action"], drop["match"]) == ("drop", f"{side} == @cb.red.drop")  # of every Ethernet type
        assert all(row["priority"] > drop["priority"] for key, row in found.items() if not key.endswith(":drop"))  # type: ignore[operator]
    members = frozenset((Ref("Logical_Switch_Port", "red/b/two"),))
    assert rows[Ref("Port_Group", "cb.red.sg.open_1")]["ports"] == members


def test_packets_from_udp_port_53_are_dropped_at_the_sender() -> None:
    guard = acls(rows_of(build_networks(*BASE)), "cb.red.drop")["from-lport:dns-guard"]
    assert guard["match"] == "inport == @cb.red.drop && udp.src == 53"
    assert guard["action"] == "drop"
    others = [row["priority"] for row in acls(rows_of(build_networks(*BASE)), "cb.red.sg.default").values()]
    assert all(isinstance(priority, int) and priority < 1900 for priority in others)


def test_dhcp_replies_and_redirects_of_ports_are_dropped() -> None:
    found = acls(rows_of(build_networks(*BASE)), "cb.red.drop")
    servers = "udp.src == {67, 547}"
    for key, match in (
        ("from-lport:dhcp-guard", f"inport == @cb.red.drop && {servers}"),
        ("to-lport:dhcp-guard", f"outport == @cb.red.drop && {servers}"),
        ("from-lport:redirect-guard", "inport == @cb.red.drop && icmp6.type == 137"),
    ):
        assert (found[key]["match"], found[key]["action"], found[key]["priority"]) == (match, "drop", 1900)


TCP = TransportProtocol.TCP


@pytest.mark.parametrize(
    ("rule", "direction", "match"),
    [
        (
            SecurityRule(direction=Direction.INGRESS, protocol=TCP, ports=(443, 443), peer=ip_network("0.0.0.0/0")),
            "to-lport",
            "outport == @cb.red.sg.web && ip4 && tcp.dst == 443",
        ),
        (
            SecurityRule(direction=Direction.INGRESS, protocol=TCP, ports=(1, 1024), peer=ip_network("10.9.0.0/16")),
            "to-lport",
            "outport == @cb.red.sg.web && ip4.src == 10.9.0.0/16 && tcp.dst >= 1 && tcp.dst <= 1024",
        ),
        (
            SecurityRule(direction=Direction.EGRESS, protocol=TransportProtocol.ICMP, peer=ip_network("::/0")),
            "from-lport",
            "inport == @cb.red.sg.web && ip6 && icmp6",
        ),
        (
            SecurityRule(direction=Direction.EGRESS, protocol=TransportProtocol.UDP, peer_group="red/default"),
            "from-lport",
            "inport == @cb.red.sg.web && (ip4.dst == $cb.red.sg.default_ip4 || ip6.dst == $cb.red.sg.default_ip6) && udp",
        ),
    ],
)
def test_security_rule_is_an_allowing_acl(rule: SecurityRule, direction: str, match: str) -> None:
    rows = rows_of(build_networks(*BASE, SecurityGroup(name="red/web", rules=(rule,))))
    (entry,) = acls(rows, "cb.red.sg.web").values()
    assert (entry["direction"], entry["match"], entry["action"]) == (direction, match, "allow-related")


def test_dhcp_options_contain_the_router_as_dns_server_and_quoted_names() -> None:
    rows = rows_of(build_networks(*BASE, port("red/a/web"), port("red/b/other")))
    four, six = Ref("DHCP_Options", "red/a:dhcp4"), Ref("DHCP_Options", "red/a:dhcp6")
    assert rows[four]["options"] == {
        "lease_time": "3600",
        "router": "10.0.1.1",
        "server_id": "10.0.1.1",
        "server_mac": "0e:01:00:01:00:01",
        "mtu": "1400",
        "domain_name": '"red.internal"',
        "dns_server": "10.0.1.1",
    }
    assert rows[six]["options"] == {
        "server_id": "0e:01:00:01:00:01",
        "domain_search": '"red.internal"',
        "dns_server": "fd00::1",
    }
    web = rows[Ref("Logical_Switch_Port", "red/a/web")]
    assert (web["dhcpv4_options"], web["dhcpv6_options"]) == (four, six)
    assert rows[Ref("Logical_Switch_Port", "red/b/other")]["dhcpv4_options"] is None
    router = rows[Ref("Logical_Router_Port", "red/a:router")]
    assert router["ipv6_ra_configs"] == {"address_mode": "dhcpv6_stateful", "send_periodic": "true", "mtu": "1400"}
    assert rows[Ref("Logical_Router_Port", "red/b:router")]["ipv6_ra_configs"] == {}


def test_dns_rows_contain_every_port_and_record() -> None:
    record = DnsRecord(name="red/db", host="db.internal", addresses=(ip_address("10.0.2.9"), ip_address("10.0.2.8")))
    networks = build_networks(*BASE, port("red/a/web", "10.0.1.11", "fd00::11"), port("red/b/other", "10.0.2.7"))
    rows = rows_of(Networks.from_objects((*networks.items(), record), revision=1))
    names: dict[str, str] = {}
    for row in rows[Ref("Logical_Switch", "cb-red/a")]["dns_records"]:  # type: ignore[union-attr]
        names.update(rows[row]["records"])  # type: ignore[index,arg-type]
    assert names == {
        "web.a.red.internal": "10.0.1.11 fd00::11",
        "other.b.red.internal": "10.0.2.7",
        "db.internal": "10.0.2.8 10.0.2.9",
    }
    assert rows[Ref("Logical_Switch", "cb-red/b")]["dns_records"] == frozenset()


def test_rows_have_exactly_the_owned_columns() -> None:
    for row, columns in rows_of(build_networks(*BASE, port("red/a/web"))).items():
        assert set(columns) == set(TABLES[row.table].columns) | {"external_ids"}


def test_rows_of_vpcs_with_equal_objects_have_different_names() -> None:
    items = [replace(item, name=item.name.replace("red", "blue", 1)) for item in BASE]
    networks = build_networks(*BASE, port("red/a/web"), *items, port("blue/a/web"))
    assert not set(rows_of(networks)) & set(rows_of(networks, "blue"))
