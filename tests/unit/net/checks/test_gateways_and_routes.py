"""Checks of uplinks, gateways, outside addresses, NAT rules, dedicated lines and routes."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

import pytest
from msgspec.structs import replace
from tests.unit.net.store.test_networks import build_networks, port, refused, subnet, vpc

from calabash.model.errors import CalabashError, Reason
from calabash.model.network import (
    DedicatedLine,
    DnsRecord,
    Eip,
    GatewayKind,
    NatKind,
    NatRule,
    NetworkGateway,
    NetworkKind,
    NetworkObject,
    NetworkRoute,
    Port,
    QosPolicy,
    Subnet,
    Uplink,
    Vpc,
)
from calabash.model.network_services import TransportProtocol
from calabash.net.checks.gateways import vpcs_limit
from calabash.net.store.networks import Networks

TCP = TransportProtocol.TCP


def uplink(name: str, third: int, *, vpcs: int = 0, vlan: int | None = None) -> Uplink:
    cidr = ip_network(f"198.51.{third}.0/28")
    return Uplink(name=name, cidr=cidr, gateway=cidr[1], vlan=third if vlan is None else vlan, vpcs_max=vpcs)


def line(name: str, vlan: int = 200, *, cidr: str = "192.168.9.0/30", routes: tuple[str, ...] = ()) -> DedicatedLine:
    network = ip_network(cidr)
    ranges = tuple(map(ip_network, routes))
    return DedicatedLine(name=name, vlan=vlan, cidr=network, address=network[1], peer=network[2], routes=ranges)


def route(name: str, prefix: str, hop: str | None = None, source: str | None = None) -> NetworkRoute:
    return NetworkRoute(
        name=name,
        prefix=ip_network(prefix),
        next_hop=ip_address(hop) if hop else None,
        source=ip_network(source) if source else None,
    )


def dnat(name: str, eip: str = "red/e", to: str = "red/a/one", outside: int = 80) -> NatRule:
    return NatRule(
        name=name, kind=NatKind.DNAT, eip=eip, port=to, protocol=TCP, outside_number=outside, inside_number=8080
    )


def fip(name: str, eip: str = "red/e", to: str = "red/a/one", *, distributed: bool = False) -> NatRule:
    return NatRule(name=name, kind=NatKind.FIP, eip=eip, port=to, distributed=distributed)


RED = build_networks(
    uplink("up1", 100),
    uplink("up2", 101, vpcs=1),
    vpc("red"),
    subnet("red/a"),
    port("red/a/one"),
    NetworkGateway(name="red/out", uplink="up1", snat=True),
    Eip(name="red/e"),
    line("red/dc", routes=("192.168.16.0/24",)),
)


def test_gateway_takes_the_uplink_with_the_fewest_vpcs_until_all_are_full() -> None:
    networks = build_networks(uplink("up1", 100, vpcs=2), uplink("up2", 101, vpcs=1), *(vpc(f"v{n}") for n in range(4)))
    found = []
    for number in range(3):
        networks, item = networks.put(NetworkGateway(name=f"v{number}/out"))
        assert isinstance(item, NetworkGateway)
        found.append((item.uplink, str(item.address)))
    assert found == [("up1", "198.51.100.2"), ("up2", "198.51.101.2"), ("up1", "198.51.100.3")]
    error = refused(networks, NetworkGateway(name="v3/out"))
    assert error.reason is Reason.NO_CAPACITY
    assert "no uplink can accept another VPC: 2 uplinks" in error.message
    assert error.message.endswith("2 uplinks accept 3 VPCs, 3 use them")
    assert "--vpcs-max`, up to 100" in error.hint
    error = refused(networks, NetworkGateway(name="v3/out", uplink="up1"))
    assert error.message == "gateway v3/out: uplink up1 is used by 2 VPCs: its limit (vpcs_max)"
    assert "calabash net uplink set up1 --vpcs-max" in error.hint


@pytest.mark.parametrize(
    ("cidr", "asked", "limit"),
    [
        ("198.51.100.0/30", 0, 1),
        ("198.51.100.0/27", 0, 29),
        ("198.51.100.0/25", 0, 100),
        ("198.51.100.0/24", 0, 100),
        ("198.51.100.0/24", 40, 40),
        ("198.51.100.0/28", 40, 13),
        ("2001:db8::/64", 0, 100),
        ("2001:db8::/126", 0, 2),
    ],
)
def test_vpc_limit_of_an_uplink_is_derived_from_its_range_and_at_most_100(cidr: str, asked: int, limit: int) -> None:
    network = ip_network(cidr)
    networks = build_networks(Uplink(name="up", cidr=network, gateway=network[1], vpcs_max=asked))
    assert vpcs_limit(networks.uplinks()["up"]) == limit


def test_full_uplink_refuses_a_gateway_and_states_the_cause_of_its_limit() -> None:
    networks = build_networks(uplink("up", 100), *(vpc(f"v{n}") for n in range(14)))  # a /28 with a router: 13
    for number in range(13):
        networks, _ = networks.put(NetworkGateway(name=f"v{number}/out"))
    error = refused(networks, NetworkGateway(name="v13/out", uplink="up"))
    assert error.reason is Reason.NO_CAPACITY
    assert error.message.endswith("uplink up is used by 13 VPCs: 198.51.100.0/28 has no more addresses for gateways")
    assert "can add an uplink with another range" in error.hint


def test_uplink_accepts_at_most_one_hundred_vpcs() -> None:
    network = ip_network("198.51.100.0/24")
    up = Uplink(name="up", cidr=network, gateway=network[1])
    networks = build_networks(up, *(vpc(f"v{n}") for n in range(101)))
    for number in range(100):
        networks, _ = networks.put(NetworkGateway(name=f"v{number}/out"))
    error = refused(networks, NetworkGateway(name="v100/out", uplink="up"))
    assert error.message.endswith("uplink up is used by 100 VPCs: the limit of every uplink")
    for asked in (-1, 101):
        error = refused(networks, replace(networks.uplinks()["up"], vpcs_max=asked))
        assert f"{asked} VPCs is not between 0 and 100" in error.message
        assert "another uplink" in error.hint
    assert (
        "used by 100 VPCs, the limit is 99" in refused(networks, replace(networks.uplinks()["up"], vpcs_max=99)).message
    )


def test_requested_address_selects_the_uplink_of_a_gateway() -> None:
    networks, item = build_networks(uplink("up1", 100), uplink("up2", 101), vpc("red")).put(
        NetworkGateway(name="red/out", address=ip_address("198.51.101.7"))
    )
    assert isinstance(item, NetworkGateway)
    assert item.uplink == "up2"
    networks, eip = networks.put(Eip(name="red/e"))
    assert eip == Eip(name="red/e", address=ip_address("198.51.101.2"))


def test_external_address_in_use_is_refused_without_naming_the_other_vpc() -> None:
    networks, _ = RED.put(vpc("blue"))
    networks, _ = networks.put(NetworkGateway(name="blue/out", uplink="up1"))
    error = refused(networks, Eip(name="blue/e", address=ip_address("198.51.100.3")))
    assert error.message.endswith("198.51.100.3 is taken by another VPC")
    error = refused(networks, Eip(name="red/e2", address=ip_address("198.51.100.2")))
    assert error.message.endswith("198.51.100.2 is taken by gateway red/out")


def test_exhausted_uplink_range_is_reported() -> None:
    networks = RED
    for number in range(11):
        networks, _ = networks.put(Eip(name=f"red/more{number}"))
    assert refused(networks, Eip(name="red/last")).reason is Reason.NO_CAPACITY


def test_nfv_gateway_creates_and_deletes_two_replica_ports_and_a_virtual_port() -> None:
    networks = build_networks(uplink("up1", 100), vpc("red"), subnet("red/a"))
    networks, item = networks.put(NetworkGateway(name="red/out", kind=GatewayKind.NFV))
    assert isinstance(item, NetworkGateway)
    assert item.ports == ("red/a/x-nfv-out-1", "red/a/x-nfv-out-2", "red/a/x-nfv-out-vip")
    virtual = networks.find(Port, item.ports[2])
    assert virtual is not None
    assert virtual.virtual_parents == item.ports[:2]
    with pytest.raises(CalabashError, match="subnet red/a is used by gateway red/out"):
        networks.remove(NetworkKind.SUBNET, "red/a")
    with pytest.raises(CalabashError, match="belongs to the platform") as caught:
        networks.remove(NetworkKind.PORT, item.ports[0])
    assert caught.value.reason is Reason.NOT_PERMITTED
    networks = networks.remove(NetworkKind.GATEWAY, "red/out")
    assert {entry.name for entry in networks.of_vpc("red")} == {"red", "red/a", "red/default"}


@pytest.mark.parametrize(
    ("item", "reason", "words"),
    [
        (uplink("up3", 102, vlan=100), Reason.CONFLICT, "VLAN 100 of ext is used by uplink up1"),
        (uplink("up3", 100, vlan=7), Reason.CONFLICT, "overlaps 198.51.100.0/28 of uplink up1"),
        (uplink("up3", 102, vlan=4095), Reason.BAD_REQUEST, "not between 0 and 4094"),
        (uplink("up3", 102, vpcs=101), Reason.BAD_REQUEST, "not between 0 and 100"),
        (replace(uplink("up3", 102), gateway=ip_address("198.51.103.1")), Reason.BAD_REQUEST, "is not in"),
        (replace(uplink("up3", 102), hosts=("g1", "G1")), Reason.BAD_REQUEST, "is not a valid name"),
        (replace(uplink("up3", 102), hosts=("g1", "g1")), Reason.BAD_REQUEST, "twice"),
        (replace(uplink("up1", 100), cidr=ip_network("198.51.100.0/27")), Reason.CONFLICT, "cidr cannot change"),
        (
            NetworkGateway(name="red/out2"),
            Reason.NO_CAPACITY,
            "VPC red has reached the limit of 1 objects of kind gateway",
        ),
        (NetworkGateway(name="red/out", uplink="up2"), Reason.CONFLICT, "uplink cannot change"),
        (NetworkGateway(name="red/out", kind=GatewayKind.NFV), Reason.CONFLICT, "kind cannot change"),
        (Eip(name="red/out"), Reason.CONFLICT, "has the same name"),
        (Eip(name="red/f", address=ip_address("198.51.100.1")), Reason.CONFLICT, "the router of uplink up1"),
        (Eip(name="red/f", address=ip_address("198.51.101.7")), Reason.BAD_REQUEST, "is not in 198.51.100.0/28"),
        (Eip(name="red/e", address=ip_address("198.51.100.9")), Reason.CONFLICT, "address cannot change"),
        (dnat("red/n", eip="red/x"), Reason.NOT_FOUND, "no outside address 'red/x'"),
        (dnat("red/n", to="red/a/two"), Reason.NOT_FOUND, "no port 'red/a/two'"),
        (dnat("red/n", outside=70000), Reason.BAD_REQUEST, "70000 is not between 1 and 65535"),
        (replace(dnat("red/n"), protocol=TransportProtocol.ICMP), Reason.BAD_REQUEST, "forwards tcp or udp"),
        (fip("red/n", eip="red/out"), Reason.BAD_REQUEST, "is the address of the gateway"),
        (replace(fip("red/n"), outside_number=5), Reason.BAD_REQUEST, "all protocols"),
        (line("red/dc2", 101), Reason.CONFLICT, "VLAN 101 of ext is used by uplink up2"),
        (line("red/dc2", 0), Reason.BAD_REQUEST, "not between 1 and 4094"),
        (line("red/dc2", 7), Reason.CONFLICT, "192.168.9.0/30 overlaps 192.168.9.0/30 of line red/dc"),
        (line("red/dc2", 7, cidr="192.168.8.0/30", routes=("10.0.8.0/24",)), Reason.CONFLICT, "of VPC red"),
        (line("red/dc2", 7, cidr="198.51.100.0/30"), Reason.CONFLICT, "of uplink up1"),
        (
            line("red/dc2", 7, cidr="192.168.8.0/30", routes=("0.0.0.0/0",)),
            Reason.BAD_REQUEST,
            "not a valid range of a line",
        ),
        (
            replace(line("red/dc2", 7, cidr="192.168.8.0/30"), peer=ip_address("192.168.8.3")),
            Reason.BAD_REQUEST,
            "broadcast",
        ),
        (vpc("red", "10.0.0.0/16", "192.168.16.0/20"), Reason.CONFLICT, "overlaps 192.168.16.0/24 of line red/dc"),
        (route("red/r", "192.0.2.0/24", "10.9.9.9"), Reason.NOT_FOUND, "in no subnet or line"),
        (route("red/r", "192.0.2.0/24", "10.0.1.1"), Reason.BAD_REQUEST, "the router itself"),
        (route("red/r", "192.0.2.0/24", "192.168.9.1"), Reason.BAD_REQUEST, "the router itself"),
        (
            route("red/r", "0.0.0.0/0", "10.0.1.9"),
            Reason.CONFLICT,
            "gateway red/out is already the default route 0.0.0.0/0",
        ),
        (route("red/r", "10.0.1.0/28", "192.168.9.2"), Reason.CONFLICT, "in subnet red/a, which needs no route"),
        (route("red/r", "169.254.3.0/24", "10.0.1.9"), Reason.BAD_REQUEST, "is reserved"),
        (route("red/r", "2001:db8::/64", "10.0.1.9"), Reason.BAD_REQUEST, "different IP versions"),
        (replace(route("red/r", "192.0.2.0/24", "10.0.1.9"), priority=0), Reason.BAD_REQUEST, "priority"),
        (
            DnsRecord(name="red/d", host="DB..internal", addresses=(ip_address("10.0.1.9"),)),
            Reason.BAD_REQUEST,
            "is not a valid name",
        ),
        (DnsRecord(name="red/d", host="db.internal", addresses=()), Reason.BAD_REQUEST, "no address"),
        (
            DnsRecord(name="red/d", host="one.a.red.internal", addresses=(ip_address("10.0.1.9"),)),
            Reason.BAD_REQUEST,
            "is a port's name",
        ),
        (QosPolicy(name="red/q"), Reason.BAD_REQUEST, "limits no direction"),
        (QosPolicy(name="red/q", egress_bits_per_s=1), Reason.BAD_REQUEST, "not between 1000"),
    ],
)
def test_invalid_object_is_refused_with_a_reason_and_changes_nothing(
    item: NetworkObject, reason: Reason, words: str
) -> None:
    error = refused(RED, item)
    assert words in error.message
    assert error.reason is reason
    assert "\n" not in error.message


def test_eip_and_nat_rule_need_a_gateway() -> None:
    networks = build_networks(uplink("up1", 100), vpc("red"), subnet("red/a"), port("red/a/one"))
    for item in (Eip(name="red/e"), fip("red/n")):
        assert "the VPC has no gateway" in refused(networks, item).message
    error = refused(build_networks(vpc("red")), NetworkGateway(name="red/out"))
    assert "no uplink can accept another VPC: 0 uplinks accept 0 VPCs" in error.message


def test_external_address_cannot_be_used_twice() -> None:
    networks, _ = RED.put(port("red/a/two"))
    forwarding, _ = networks.put(dnat("red/web"))
    assert "in use by NAT rule red/web" in refused(forwarding, dnat("red/web2", to="red/a/two")).message
    assert "in use by NAT rule red/web" in refused(forwarding, fip("red/all")).message
    assert forwarding.put(dnat("red/tls", outside=443))[0] is not forwarding
    assert forwarding.put(dnat("red/own", eip="red/out"))[0] is not forwarding
    floating, _ = networks.put(fip("red/all", distributed=True))
    assert "in use by NAT rule red/all" in refused(floating, dnat("red/web")).message
    floating, _ = floating.put(Eip(name="red/e2"))
    assert "has the floating address of NAT rule red/all" in refused(floating, fip("red/b", eip="red/e2")).message


def test_routes_for_the_same_packets_are_refused_unless_their_sources_differ() -> None:
    networks, _ = RED.put(route("red/r", "203.0.113.0/24", "10.0.1.9"))
    assert "matches the same packets" in refused(networks, route("red/s", "203.0.113.0/24", "10.0.1.8")).message
    networks, _ = networks.put(route("red/s", "203.0.113.0/24", "10.0.1.8", source="10.0.1.0/25"))
    networks, _ = networks.put(route("red/t", "0.0.0.0/0", None, source="10.0.1.0/25"))
    assert len(networks.of_vpc("red").all(NetworkRoute)) == 3


def _removals() -> Networks:
    networks, _ = RED.put(dnat("red/web"))
    networks, _ = networks.put(route("red/r", "203.0.113.0/24", "192.168.9.2"))
    networks, _ = networks.put(QosPolicy(name="red/q", egress_bits_per_s=10**9))
    networks, _ = networks.put(replace(port("red/a/two"), qos="red/q"))
    networks, _ = networks.put(route("red/s", "192.0.2.0/24", "10.0.1.9"))
    return networks


@pytest.mark.parametrize(
    ("kind", "name", "by"),
    [
        (NetworkKind.UPLINK, "up1", "gateway red/out"),
        (NetworkKind.GATEWAY, "red/out", "outside address red/e"),
        (NetworkKind.EIP, "red/e", "NAT rule red/web"),
        (NetworkKind.PORT, "red/a/one", "NAT rule red/web"),
        (NetworkKind.DEDICATED_LINE, "red/dc", "route red/r"),
        (NetworkKind.QOS_POLICY, "red/q", "port red/a/two"),
        (NetworkKind.SUBNET, "red/a", "route red/s"),
    ],
)
def test_object_in_use_cannot_be_deleted_and_its_dependents_are_named(kind: NetworkKind, name: str, by: str) -> None:
    networks = _removals()
    if kind is NetworkKind.SUBNET:
        networks = networks.remove(NetworkKind.NAT_RULE, "red/web")
        networks = networks.remove(NetworkKind.PORT, "red/a/one").remove(NetworkKind.PORT, "red/a/two")
    before = networks.revision
    with pytest.raises(CalabashError, match=f"is used by {by}") as caught:
        networks.remove(kind, name)
    assert caught.value.reason is Reason.CONFLICT
    assert networks.revision == before


def test_limits_ignore_kinds_without_objects() -> None:
    assert list(RED.all(QosPolicy)) == []
    assert RED.of_vpc("nobody").all(Subnet) == {}
    assert RED.find(Vpc, "nobody") is None
