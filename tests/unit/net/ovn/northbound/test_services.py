"""Rows of gateways, load balancers, peerings, endpoints, lines, routes and QoS, in networks that contain all of them."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address, ip_network

import pytest
from msgspec.structs import replace
from tests.unit.net.network_builders import build_networks, port, subnet, vpc
from tests.unit.net.sample_tenants import HOSTS, balanced, base, networks_of, sample_tenants

from calabash.model.network import NetworkGateway, NetworkKind, Peering, Uplink, kind_of
from calabash.model.network_services import Backend, CheckKind, HealthCheck, LoadBalancer, ServiceEndpoint
from calabash.net.objects.backends import format_closed, parse_closed
from calabash.net.ovn.northbound.rows import CLOSED, OWNER, PLATFORM, Columns, Ref, Rows, Value
from calabash.net.ovn.northbound.tables import TABLES
from calabash.net.ovn.translation.platform import platform_rows
from calabash.net.ovn.translation.view import NetworkHosts
from calabash.net.ovn.translation.vpc import vpc_rows
from calabash.net.store.networks import Networks

NETWORKS = sample_tenants()
RED, BLUE, GREEN = (vpc_rows(NETWORKS, name, hosts=HOSTS) for name in ("red", "blue", "green"))
PROTECTED = (ip_network("172.31.0.0/24"), ip_network("169.254.0.0/16"), ip_network("fd31::/64"))
SHARED = platform_rows(NETWORKS, protected=PROTECTED)


def of_table(rows: Rows, table: str) -> dict[str, Columns]:
    return {row.key: columns for row, columns in rows.items() if row.table == table}


def members(value: Value) -> frozenset[object]:
    assert isinstance(value, frozenset)
    return frozenset(value)


def pointed(rows: Rows, row: Ref, column: str) -> dict[str, Columns]:
    return {ref.key: rows[ref] for ref in members(rows[row][column]) if isinstance(ref, Ref)}


@pytest.mark.parametrize(("owner", "rows"), [("red", RED), ("blue", BLUE), ("green", GREEN), (PLATFORM, SHARED)])
def test_rows_belong_to_their_owner_and_refer_to_its_rows_only(owner: str, rows: Rows) -> None:
    for row, columns in rows.items():
        if not TABLES[row.table].single:
            assert set(columns) == {*TABLES[row.table].columns, "external_ids"}, row
            assert columns["external_ids"][OWNER] == owner  # type: ignore[index]
        for value in columns.values():
            for item in value if isinstance(value, frozenset) else (value,):
                assert not isinstance(item, Ref) or item in rows, (row, item)


def test_rows_have_one_owner_and_name_other_vpcs_in_peer_ports_only() -> None:
    assert sum(map(len, (RED, BLUE, GREEN, SHARED))) == len({**RED, **BLUE, **GREEN, **SHARED})
    foreign = [
        (row, name)
        for row, columns in BLUE.items()
        for name, value in columns.items()
        if any(word in repr(value) for word in ("red/", "red:", "cb-red", "cb.red"))
    ]
    assert foreign == []


def test_drop_group_contains_every_port_of_the_vpc() -> None:
    for name, rows in (("red", RED), ("blue", BLUE), ("green", GREEN)):
        ports = {Ref("Logical_Switch_Port", port) for port in NETWORKS.of_vpc(name).kinds[NetworkKind.PORT]}
        assert members(rows[Ref("Port_Group", f"cb.{name}.drop")]["ports"]) == ports


def test_gateway_is_a_chassis_port_that_translates_all_ranges_of_its_ip_version() -> None:
    port = RED[Ref("Logical_Router_Port", "red:uplink:router")]
    assert port["networks"] == frozenset(("198.51.100.10/24",))
    assert port["options"] == {"gateway_mtu": "1400"}
    chassis = pointed(RED, Ref("Logical_Router_Port", "red:uplink:router"), "gateway_chassis")
    assert {row["chassis_name"]: row["priority"] for row in chassis.values()} == {"g1": 100, "g2": 99}
    router = Ref("Logical_Router", "cb-red")
    default = pointed(RED, router, "static_routes")["red/out:gateway"]
    assert (default["ip_prefix"], default["nexthop"]) == ("0.0.0.0/0", "198.51.100.1")
    snat = pointed(RED, router, "nat")["red/out:snat:10.0.0.0/16"]
    assert (snat["type"], snat["external_ip"]) == ("snat", "198.51.100.10")
    assert snat["gateway_port"] == Ref("Logical_Router_Port", "red:uplink:router")


def test_vpcs_are_spread_over_gateway_hosts() -> None:
    first = {
        name: max(of_table(rows, "Gateway_Chassis").values(), key=lambda row: str(row["priority"]).zfill(3))[
            "chassis_name"
        ]
        for name, rows in (("red", RED), ("blue", BLUE))
    }
    assert set(first.values()) == {"g1", "g2"}


def test_floating_address_translates_both_ways_and_dnat_one_port_number() -> None:
    fip = pointed(RED, Ref("Logical_Router", "cb-red"), "nat")["red/public:fip"]
    assert (fip["type"], fip["external_ip"], fip["logical_ip"]) == ("dnat_and_snat", "198.51.100.12", "10.0.2.11")
    assert (fip["logical_port"], str(fip["external_mac"])[:2]) == ("red/b/db", "06")
    dnat = RED[Ref("Load_Balancer", "cb-red/ssh:dnat")]
    assert dnat["vips"] == {"198.51.100.11:2222": "10.0.1.11:22"}


def test_balancer_is_on_every_switch_and_the_router_and_checks_from_a_reserved_address() -> None:
    row = Ref("Load_Balancer", "cb-red/web")
    balancer = RED[row]
    assert balancer["vips"] == {"10.0.1.100:80": "10.0.1.11:8080,10.0.1.12:8080"}
    assert balancer["ip_port_mappings"] == {
        "10.0.1.11": "red/a/web1:10.0.1.254",
        "10.0.1.12": "red/a/web2:10.0.1.254",
    }
    for holder in (
        Ref("Logical_Router", "cb-red"),
        Ref("Logical_Switch", "cb-red/a"),
        Ref("Logical_Switch", "cb-red/b"),
    ):
        assert row in members(RED[holder]["load_balancer"])
    (check,) = pointed(RED, row, "health_check").values()
    assert check["options"] == {"interval": "1", "timeout": "1", "success_count": "1", "failure_count": "2"}


def test_accepted_peering_joins_routers_and_is_not_transitive() -> None:
    assert RED[Ref("Logical_Router_Port", "red:peer:green:router")]["peer"] == "green:peer:red:router"
    assert GREEN[Ref("Logical_Router_Port", "green:peer:red:router")]["peer"] == "red:peer:green:router"
    route = pointed(GREEN, Ref("Logical_Router", "cb-green"), "static_routes")["green/red:peer:10.0.1.0/24"]
    (theirs,) = (
        address
        for address in members(RED[Ref("Logical_Router_Port", "red:peer:green:router")]["networks"])
        if "." in str(address)
    )
    assert route["nexthop"] == str(theirs).split("/")[0]
    guards = {row["match"] for row in of_table(RED, "Logical_Router_Policy").values() if row["action"] == "drop"}
    port = 'inport == "red:peer:green:router"'
    assert f"{port} && ip4 && ip4.dst != {{10.0.0.0/16}}" in guards
    assert f"{port} && ip4 && ip4.src != {{10.1.0.0/16}}" in guards
    assert f"{port} && ip6" in guards  # the other has no range of IPv6
    one_sided = Networks.from_objects(
        (item for item in NETWORKS.items() if item != Peering(name="green/red", number=1)), 1
    )
    assert ":peer:" not in repr(vpc_rows(one_sided, "red", hosts=HOSTS).keys())
    assert ":peer:" not in repr(vpc_rows(one_sided, "green", hosts=HOSTS).keys())


def test_endpoint_translates_its_vpc_and_admits_only_the_service() -> None:
    nat = pointed(BLUE, Ref("Logical_Router", "cb-blue"), "nat")["blue/models:snat:10.0.0.0/16"]
    service = of_table(RED, "Load_Balancer")["cb-red:endpoint:1"]
    local = of_table(BLUE, "Load_Balancer")["cb-blue:endpoint:1"]
    (vip,) = dict(service["vips"])  # type: ignore[arg-type]
    assert local["vips"] == {"10.0.1.150:80": vip}
    assert service["vips"] == {vip: "10.0.1.11:8080,10.0.1.12:8080"}
    offer = pointed(RED, Ref("Port_Group", "cb.red.offer.1"), "acls")
    assert [row["match"] for row in offer.values()] == [
        f"outport == @cb.red.offer.1 && ip4.src == {nat['external_ip']} && tcp.dst == 8080"
    ]
    entries = pointed(SHARED, Ref("Logical_Switch", "cb:endpoint:1"), "acls").values()
    assert sorted(str(row["action"]) for row in entries) == ["allow"] * 4 + ["drop"] * 4
    assert all(
        "tcp.dst == 80" in str(row["match"]) or "tcp.src == 80" in str(row["match"])
        for row in entries
        if row["action"] == "allow"
    )


def test_dedicated_line_is_a_vlan_that_reaches_only_its_vpc() -> None:
    local = RED[Ref("Logical_Switch_Port", "red:line:dc1:localnet")]
    assert (local["tag"], local["options"]) == (100, {"network_name": "ext"})
    route = pointed(RED, Ref("Logical_Router", "cb-red"), "static_routes")["red/dc1:line:192.168.50.0/24"]
    assert (route["nexthop"], route["output_port"]) == ("192.0.2.2", "red:line:dc1:router")
    guard = of_table(RED, "Logical_Router_Policy")["red:line:dc1:router:dst4:guard"]
    assert (guard["match"], guard["action"]) == (
        'inport == "red:line:dc1:router" && ip4 && ip4.dst != {10.0.0.0/16}',
        "drop",
    )


def test_forged_vpc_sources_from_uplink_and_line_are_dropped() -> None:
    drops = {row["match"] for row in of_table(RED, "Logical_Router_Policy").values() if row["action"] == "drop"}
    for side in ("red:uplink:router", "red:line:dc1:router"):
        assert f'inport == "{side}" && ip4.src == {{10.0.0.0/16}}' in drops
        assert f'inport == "{side}" && ip6.src == {{fd00::/56}}' in drops


def test_policies_of_users_have_lower_priority_than_guards() -> None:
    policies = of_table(RED, "Logical_Router_Policy")
    own = policies["red/via:route"]
    assert (own["priority"], own["action"], own["nexthops"]) == (1007, "reroute", frozenset(("10.0.1.12",)))
    assert own["match"] == "ip4.src == 10.0.2.0/24 && ip4.dst == 10.78.0.0/16"
    assert all(row["priority"] == 30_000 for key, row in policies.items() if key.endswith(":guard"))
    hole = of_table(RED, "Logical_Router_Static_Route")["red/hole:route"]
    assert hole["nexthop"] == "discard"


def test_next_hop_port_may_use_addresses_of_its_route() -> None:
    (security,) = members(RED[Ref("Logical_Switch_Port", "red/a/web2")]["port_security"])
    assert str(security).endswith(" 10.0.1.12 fd00::12 10.78.0.0/16")
    (other,) = members(BLUE[Ref("Logical_Switch_Port", "blue/a/web2")]["port_security"])
    assert str(other).endswith(" 10.0.1.12 fd00::12")


def test_qos_rate_has_a_burst_of_one_second() -> None:
    rows = {str(row["match"]): row for row in of_table(RED, "QoS").values()}
    assert rows['inport == "red/b/db"']["bandwidth"] == {"rate": 100_000, "burst": 100_000}
    assert rows['outport == "red/b/db"']["bandwidth"] == {"rate": 50_000, "burst": 50_000}


def test_uplink_is_a_vlan_switch_that_drops_ranges_of_the_platform() -> None:
    assert SHARED[Ref("Logical_Switch_Port", "cb:uplink:ext:localnet")]["tag"] == 7
    entries = pointed(SHARED, Ref("Logical_Switch", "cb:uplink:ext"), "acls")
    drops = {str(row["match"]) for row in entries.values() if row["action"] == "drop"}
    for side, end in (("inport", "src"), ("outport", "dst")):
        assert f'{side} == "cb:uplink:ext:localnet" && ip4.{end} == {{169.254.0.0/16, 172.31.0.0/24}}' in drops
        assert f'{side} == "cb:uplink:ext:localnet" && ip6.{end} == {{fd31::/64}}' in drops
        assert f'{side} == "red:uplink:switch" && ip' in drops
    own = entries["cb:uplink:ext:to-lport:red:uplink:switch:own"]
    assert own["match"] == (
        'outport == "red:uplink:switch" && ip4.dst == {198.51.100.10, 198.51.100.11, 198.51.100.12}'
    )
    assert {str(row["action"]) for row in entries.values()} == {
        "allow",
        "drop",
    }  # stateless


def test_global_options_detect_a_lost_gateway_within_600_ms() -> None:
    options = SHARED[Ref("NB_Global", ".")]["options"]
    assert options == {
        "bfd-min-rx": "200",
        "bfd-min-tx": "200",
        "bfd-mult": "3",
        "svc_monitor_mac": "0e:ff:00:00:00:01",
    }


def test_default_route_leads_to_the_nfv_virtual_port_and_replicas_may_forward() -> None:
    route = of_table(GREEN, "Logical_Router_Static_Route")["green/out:gateway"]
    assert (route["ip_prefix"], route["nexthop"]) == ("0.0.0.0/0", "10.1.1.242")
    replica = GREEN[Ref("Logical_Switch_Port", "green/a/x-nfv-out-1")]
    (mac,) = members(replica["port_security"])
    assert " " not in str(mac)
    assert GREEN[Ref("Logical_Switch_Port", "green/a/x-nfv-out-v")]["type"] == "virtual"
    legs = {port for port in of_table(SHARED, "Logical_Switch_Port") if port.startswith("green:nfv")}
    assert legs == {"green:nfv:1", "green:nfv:2"}
    for leg in legs:
        (security,) = members(SHARED[Ref("Logical_Switch_Port", leg)]["port_security"])
        assert str(security).endswith(" 198.51.100.40")


def test_haproxy_pair_reaches_its_backends_and_clients_reach_its_address() -> None:
    pair = {str(row["match"]) for row in pointed(GREEN, Ref("Port_Group", "cb.green.l7.shop"), "acls").values()}
    assert "outport == @cb.green.l7.shop && ip4.dst == 10.1.1.232 && tcp.dst == 443" in pair
    (backend,) = pointed(GREEN, Ref("Port_Group", "cb.green.lb.shop"), "acls").values()
    assert backend["match"] == "outport == @cb.green.lb.shop && ip4.src == $cb.green.l7.shop_ip4 && tcp.dst == 8000"
    assert Ref("Load_Balancer", "cb-green/shop") not in GREEN


def test_endpoint_without_its_balancer_has_no_rows() -> None:
    dangling = ServiceEndpoint(name="blue/gone", source="red/none", number=2)
    networks = networks_of(*base("red"), *base("blue"), balanced("red"), dangling)
    assert not any("endpoint" in row.key for row in vpc_rows(networks, "blue", hosts=HOSTS))
    assert not any("endpoint" in row.key for row in platform_rows(networks))


def test_gateway_at_an_ipv6_uplink_uses_ipv6() -> None:
    six = ip_network("2001:db8::/64")
    items = [
        replace(item, cidr=six, gateway=six[1]) if isinstance(item, Uplink) else item
        for item in NETWORKS.items()
        if kind_of(item) not in {NetworkKind.GATEWAY, NetworkKind.EIP, NetworkKind.NAT_RULE}
    ]
    gateway = replace(next(NETWORKS.all(NetworkGateway)), address=six[9])
    networks = Networks.from_objects((*items, gateway), 1)
    rows = vpc_rows(networks, "red", hosts=HOSTS)
    assert of_table(rows, "NAT")["red/out:snat:fd00::/56"]["external_ip"] == "2001:db8::9"
    assert of_table(rows, "Logical_Router_Static_Route")["red/out:gateway"]["ip_prefix"] == "::/0"
    entries = of_table(platform_rows(networks), "ACL")
    assert any("nd_ra" in str(row["match"]) for row in entries.values())


def test_closed_backend_of_a_tcp_checked_balancer_gets_no_new_connections() -> None:
    closed = frozenset({("red/a/web", 8080)})
    for check, vips, flush in (
        (CheckKind.TCP, "10.0.1.12:8080", "false"),
        (CheckKind.NONE, "10.0.1.11:8080,10.0.1.12:8080", "true"),
    ):
        balancer = LoadBalancer(
            name="red/front",
            vip=ip_address("10.0.1.100"),
            vip_number=80,
            backends=(Backend(port="red/a/web", number=8080), Backend(port="red/a/web2", number=8080)),
            check=HealthCheck(kind=check),
        )
        ports = (port("red/a/web", "10.0.1.11"), port("red/a/web2", "10.0.1.12"))
        networks = build_networks(vpc("red"), subnet("red/a"), *ports, balancer)
        rows = vpc_rows(networks, "red", hosts=NetworkHosts(), closed=closed)
        row = rows[Ref("Load_Balancer", "cb-red/front")]
        options, ids = row["options"], row["external_ids"]
        assert isinstance(options, Mapping)
        assert isinstance(ids, Mapping)
        assert (row["vips"], options["ct_flush"]) == ({"10.0.1.100:80": vips}, flush)
        noted = [str(ids[CLOSED])] if CLOSED in ids else []
        assert parse_closed(noted) == (closed if check is CheckKind.TCP else frozenset())


def test_closed_backends_round_trip_and_invalid_text_is_ignored() -> None:
    closed = frozenset({("red/a/web", 80), ("red/a/web", 8080), ("blue/a/db", 5432)})
    assert parse_closed([format_closed(closed), "", "no-number", ":80"]) == closed
