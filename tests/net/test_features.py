"""Tests of features of a VPC with packets: ranges, gateways, services, peering, groups, rate limits, DHCP and DNS.

``red`` and ``blue`` have the same addresses, ``green`` has others.
"""

from __future__ import annotations

import errno
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from ipaddress import ip_address, ip_network

import pytest
from msgspec.structs import replace
from tests.daemons.world import until
from tests.net.ovn_queries import bits_through, dhcp4, dhcp6, dns
from tests.net.packets import IPV4, Sniffer, ethernet, ip, send, tcp
from tests.net.site import Site
from tests.net.station_sockets import Banner, asked, pings
from tests.unit.net.network_builders import port, subnet, vpc

from calabash.controllers.lab.lab import Lab
from calabash.controllers.lab.station import Station
from calabash.model.network import (
    MTU_DEFAULT,
    DedicatedLine,
    Direction,
    DnsRecord,
    Eip,
    NatKind,
    NatRule,
    NetworkGateway,
    NetworkKind,
    NetworkRoute,
    Peering,
    QosPolicy,
    SecurityGroup,
    SecurityRule,
    Uplink,
    Vpc,
)
from calabash.model.network_services import (
    Backend,
    CheckKind,
    HealthCheck,
    LoadBalancer,
    ServiceEndpoint,
    TransportProtocol,
)
from calabash.net.addresses.derived import MacUse, platform_mac

HOSTS, GATEWAYS = ("h1", "h2"), ("g1", "g2")
TCP = TransportProtocol.TCP
_IP_MTU_DISCOVER, _IP_MTU, _IP_PMTUDISC_DO = 10, 14, 2  # of Linux; Python has no names for them
WORLD = "198.51.100.1"
INTERNET = "203.0.113.10"
ANYWHERE = (ip_network("0.0.0.0/0"), ip_network("::/0"))
PLACES = {
    "red/a/web1": "h1",
    "red/a/web2": "h2",
    "red/b/db": "h2",
    "blue/a/web1": "h2",
    "blue/b/db": "h1",
    "green/a/one": "h2",
}
Stations = dict[str, Station]


@pytest.fixture(scope="module")
def stations(site: Site) -> Stations:
    """Create ports on hosts, and gateways of red and blue; the group ``open`` admits all clients to port 8000."""
    site.put(Uplink(name="ext", cidr=ip_network("198.51.100.0/24"), gateway=ip_address(WORLD)))
    for name in ("red", "blue"):
        opened = [
            SecurityRule(direction=Direction.INGRESS, protocol=TCP, ports=(8000, 8100), peer=anybody)
            for anybody in ANYWHERE
        ]
        both = (f"{name}/default", f"{name}/open")
        site.put(
            vpc(name, "10.0.0.0/16", "fd00::/56"),
            subnet(f"{name}/a", "10.0.1.0/24", "fd00::/64", served=True),
            subnet(f"{name}/b", "10.0.2.0/24"),
            SecurityGroup(name=f"{name}/open", rules=tuple(opened)),
            NetworkGateway(name=f"{name}/out", uplink="ext", snat=True),
            port(f"{name}/a/web1", "10.0.1.11", "fd00::11", groups=both),
            port(f"{name}/b/db", "10.0.2.11", groups=both),
        )
    site.put(port("red/a/web2", "10.0.1.12", "fd00::12", groups=("red/default", "red/open")))
    ranges = ("10.1.1.0/24", "fd01::/64")
    site.put(
        vpc("green", "10.1.0.0/16", "fd01::/56"),
        subnet("green/a", *ranges),
        port("green/a/one", "10.1.1.11", "fd01::11"),
    )
    made = {name: site.station(host, name) for name, host in PLACES.items()}
    for one, address in (("red/a/web1", "10.0.1.12"), ("red/a/web1", "10.0.2.11"), ("blue/a/web1", "10.0.2.11")):
        assert pings(made[one], address, timeout_s=60)
    return made


@pytest.fixture(scope="module")
def banners(stations: Stations, lab: Lab) -> Iterator[None]:
    """Run servers at port 8000 of every station and of the outside, which answer with their names."""
    with ExitStack() as opened:
        for name, station in (stations | {"world": lab.world}).items():
            opened.enter_context(Banner(station, 8000, name))
        yield


def reached(station: Station, address: str, number: int, wanted: str) -> None:
    """Repeat the request until the answer is the wanted one: the first packets after a change may be lost."""
    until(
        lambda: asked(station, address, number, timeout_s=2) == wanted, within_s=60, what=f"{address}:{number} {wanted}"
    )


def address_of(site: Site, kind: NetworkKind, name: str) -> str:
    item = site.networks.get(kind, name)
    assert isinstance(item, NetworkGateway | Eip)
    return str(item.address)


def silent(station: Station, address: str, number: int) -> bool:
    return asked(station, address, number, timeout_s=1).startswith("no: ")


@pytest.mark.usefixtures("banners")
def test_equal_addresses_are_each_vpcs_own_in_a_subnet_and_across(stations: Stations) -> None:
    for name in ("red", "blue"):
        assert asked(stations[f"{name}/a/web1"], "10.0.2.11", 8000) == f"{name}/b/db 10.0.1.11"
        assert asked(stations[f"{name}/b/db"], "10.0.1.11", 8000) == f"{name}/a/web1 10.0.2.11"
    assert asked(stations["red/a/web1"], "10.0.1.12", 8000) == "red/a/web2 10.0.1.11"
    assert pings(stations["red/a/web1"], "fd00::12")
    assert not pings(stations["blue/a/web1"], "10.0.1.12", timeout_s=1)  # which red has


@pytest.mark.usefixtures("banners")
def test_what_leaves_has_its_gateways_address(stations: Stations, site: Site) -> None:
    for name in ("red", "blue"):
        gateway = address_of(site, NetworkKind.GATEWAY, f"{name}/out")
        reached(stations[f"{name}/a/web1"], INTERNET, 8000, f"world {gateway}")
        reached(stations[f"{name}/b/db"], INTERNET, 8000, f"world {gateway}")


@pytest.mark.usefixtures("banners")
def test_answers_of_dns_servers_outside_come_in_and_nothing_else_from_their_port(
    stations: Stations, lab: Lab, site: Site
) -> None:
    with lab.world.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind((INTERNET, 53))
        server.settimeout(60)
        with stations["red/a/web1"].socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            client.settimeout(60)
            client.sendto(b"a question that OVN's DNS does not know", (INTERNET, 53))
            question, peer = server.recvfrom(100)
            assert peer[0] == address_of(site, NetworkKind.GATEWAY, "red/out")
            server.sendto(b"answer", peer)
            assert client.recv(100) == b"answer"
            assert question.startswith(b"a question")


@pytest.mark.usefixtures("banners")
def test_floating_addresses_are_a_ports_both_ways_at_the_gateway_and_at_its_own_host(
    stations: Stations, site: Site, lab: Lab
) -> None:
    site.put(
        Eip(name="red/one"),
        Eip(name="red/two"),
        NatRule(name="red/f1", kind=NatKind.FIP, eip="red/one", port="red/a/web1"),
        NatRule(name="red/f2", kind=NatKind.FIP, eip="red/two", port="red/b/db", distributed=True),
    )
    for eip, name in (("red/one", "red/a/web1"), ("red/two", "red/b/db")):
        address = address_of(site, NetworkKind.EIP, eip)
        reached(lab.world, address, 8000, f"{name} {WORLD}")
        reached(stations[name], INTERNET, 8000, f"world {address}")
        assert silent(lab.world, address, 8001)
        until(
            lambda: asked(stations["red/a/web2"], address, 8000, timeout_s=2).startswith(f"{name} "),  # noqa: B023
            within_s=60,
            what=f"{name} is reached from inside by its outside address",
        )
    for name in ("red/f1", "red/f2"):
        site.remove(NetworkKind.NAT_RULE, name)
    assert silent(lab.world, address_of(site, NetworkKind.EIP, "red/one"), 8000)


def test_nobody_outside_passes_for_a_member_of_a_group(stations: Stations, site: Site, lab: Lab) -> None:
    site.put(Eip(name="red/mask"), NatRule(name="red/f4", kind=NatKind.FIP, eip="red/mask", port="red/a/web1"))
    address = address_of(site, NetworkKind.EIP, "red/mask")
    with Banner(stations["red/a/web1"], 8011, "web1"):
        reached(lab.world, address, 8011, f"web1 {WORLD}")
    uplink = site.networks.find(Uplink, "ext")
    found = site.networks.find(Vpc, "red")
    assert uplink is not None
    assert found is not None
    router = platform_mac(MacUse.UPLINK, found.number, uplink.number)

    def syn(source: str, number: int, mark: bytes) -> bytes:
        body = tcp(source, address, (40000, number), mark)
        return ethernet("0a:ff:00:00:00:01", router, IPV4, ip(source, address, 6, body))

    with Sniffer(stations["red/a/web1"]) as sniffer:
        send(lab.world, syn("10.0.1.12", 9300, b"forged-one"))  # web2's address, of the same group
        send(lab.world, syn(WORLD, 8012, b"canary"))
        assert sniffer.wait(b"canary")
        assert sniffer.frames_with(b"forged-one") == []
    site.remove(NetworkKind.NAT_RULE, "red/f4")


def test_who_sends_more_than_a_vpcs_mtu_from_outside_is_told(stations: Stations, site: Site, lab: Lab) -> None:
    site.put(Eip(name="red/big"), NatRule(name="red/f3", kind=NatKind.FIP, eip="red/big", port="red/a/web1"))
    address = address_of(site, NetworkKind.EIP, "red/big")
    with Banner(stations["red/a/web1"], 8010, "web1"), lab.world.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        reached(lab.world, address, 8010, f"web1 {WORLD}")
        client.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _IP_PMTUDISC_DO)
        client.connect((address, 8010))

        def told() -> bool:
            try:
                client.send(bytes(1450))
            except OSError as error:
                return error.errno == errno.EMSGSIZE
            return False

        until(told, within_s=60, what="the world learns the MTU")
        assert client.getsockopt(socket.IPPROTO_IP, _IP_MTU) == MTU_DEFAULT
    site.remove(NetworkKind.NAT_RULE, "red/f3")


@pytest.mark.usefixtures("banners")
def test_one_number_of_an_outside_address_and_of_the_gateways_own_goes_to_a_port(
    stations: Stations, site: Site, lab: Lab
) -> None:
    site.put(
        Eip(name="red/three"),
        NatRule(
            name="red/d1", kind=NatKind.DNAT, eip="red/three", port="red/a/web2", protocol=TCP,
            outside_number=2222, inside_number=8000,
        ),
        NatRule(
            name="red/d2", kind=NatKind.DNAT, eip="red/out", port="red/b/db", protocol=TCP,
            outside_number=2223, inside_number=8000,
        ),
    )  # fmt: skip
    reached(lab.world, address_of(site, NetworkKind.EIP, "red/three"), 2222, f"red/a/web2 {WORLD}")
    reached(lab.world, address_of(site, NetworkKind.GATEWAY, "red/out"), 2223, f"red/b/db {WORLD}")
    assert silent(lab.world, address_of(site, NetworkKind.EIP, "red/three"), 8000)
    reached(stations["red/a/web1"], address_of(site, NetworkKind.EIP, "red/three"), 2222, "red/a/web2 10.0.1.11")


def balancer(vip: str, name: str = "red/web") -> LoadBalancer:
    backends = tuple(Backend(port=f"red/{label}", number=8100) for label in ("a/web2", "b/db"))
    check = HealthCheck(kind=CheckKind.TCP)
    return LoadBalancer(name=name, vip=ip_address(vip), vip_number=80, backends=backends, check=check)


def answering(station: Station, address: str, number: int, times: int) -> set[str]:
    told = Counter(asked(station, address, number, timeout_s=2).split()[0] for _ in range(times))
    return set(told)


def test_balancer_spreads_connections_and_leaves_out_who_does_not_answer(
    stations: Stations, site: Site, lab: Lab
) -> None:
    with ExitStack() as opened:
        opened.enter_context(Banner(stations["red/b/db"], 8100, "red/b/db"))
        healthy = Banner(stations["red/a/web2"], 8100, "red/a/web2")
        site.put(Eip(name="red/front"))
        front = address_of(site, NetworkKind.EIP, "red/front")
        site.put(balancer("10.0.1.100"), balancer(front, "red/front"))
        both = {"red/b/db", "red/a/web2"}
        for station, address in ((stations["red/a/web1"], "10.0.1.100"), (lab.world, front)):
            until(lambda: answering(station, address, 80, 12) == both, within_s=60, what=f"both answer at {address}")  # noqa: B023
        assert silent(stations["blue/a/web1"], "10.0.1.100", 80)
        healthy.close()
        for station, address in ((stations["red/a/web1"], "10.0.1.100"), (lab.world, front)):
            until(lambda: answering(station, address, 80, 8) == {"red/b/db"}, within_s=60, what="one answers")  # noqa: B023


@pytest.mark.usefixtures("banners")
def test_only_the_service_of_a_vpc_with_the_same_range_answers_at_its_local_address(
    stations: Stations, site: Site
) -> None:
    backends = (Backend(port="red/b/db", number=8000),)
    site.put(LoadBalancer(name="red/served", vip=ip_address("10.0.1.101"), vip_number=80, backends=backends))
    site.put(ServiceEndpoint(name="blue/models", source="red/served", vip=ip_address("10.0.1.150")))
    client = stations["blue/a/web1"]
    until(lambda: asked(client, "10.0.1.150", 80, timeout_s=2).startswith("red/b/db "), within_s=60)
    assert asked(client, "10.0.1.150", 80).split()[1].startswith("169.254.")  # blue is hidden behind one address
    assert silent(client, "10.0.1.150", 8000)
    assert asked(client, "10.0.2.11", 8000) == "blue/b/db 10.0.1.11"  # its own neighbours are where they were
    assert not pings(stations["red/a/web1"], "169.254.128.9", timeout_s=1)
    site.remove(NetworkKind.SERVICE_ENDPOINT, "blue/models")
    assert silent(client, "10.0.1.150", 80)


@pytest.mark.usefixtures("banners")
def test_peers_reach_each_other_when_both_have_asked_and_a_policy_drops_between_them(
    stations: Stations, site: Site
) -> None:
    green, red = stations["green/a/one"], stations["red/a/web1"]
    site.put(Peering(name="green/red"))
    assert silent(green, "10.0.1.11", 8000)
    site.put(Peering(name="red/green"))
    reached(green, "10.0.1.11", 8000, "red/a/web1 10.1.1.11")
    assert silent(red, "10.1.1.11", 8000)  # as green's groups let nobody in
    site.put(NetworkRoute(name="red/closed", prefix=ip_network("10.1.1.0/24"), source=ip_network("10.0.1.11/32")))
    until(lambda: silent(green, "10.0.1.11", 8000), within_s=60)
    assert asked(green, "10.0.1.12", 8000) == "red/a/web2 10.1.1.11"
    site.remove(NetworkKind.ROUTE, "red/closed")
    reached(green, "10.0.1.11", 8000, "red/a/web1 10.1.1.11")
    site.remove(NetworkKind.PEERING, "green/red")
    assert silent(green, "10.0.1.11", 8000)


@pytest.mark.usefixtures("banners")
def test_peer_is_no_way_to_the_outside(stations: Stations, site: Site) -> None:
    """Green has no gateway; its packets for the outside, sent to red, end there."""
    site.put(Peering(name="green/red"), Peering(name="red/green"))
    reached(stations["green/a/one"], "10.0.1.11", 8000, "red/a/web1 10.1.1.11")
    hop = next(
        str(columns["nexthop"])
        for row, columns in site.northbound.actual("green").items()
        if row.table == "Logical_Router_Static_Route"
    )
    name = "cb-green"
    site.lab.central.nbctl("--wait=hv", "lr-route-add", name, "0.0.0.0/0", hop)
    assert silent(stations["green/a/one"], INTERNET, 8000)
    site.lab.central.nbctl("--wait=hv", "lr-route-del", name, "0.0.0.0/0")
    site.remove(NetworkKind.PEERING, "green/red")


def test_ipv6_has_balancers_endpoints_and_peers_as_ipv4_has(stations: Stations, site: Site) -> None:
    backends = (Backend(port="red/a/web2", number=8060),)
    site.put(
        LoadBalancer(name="red/six", vip=ip_address("fd00::100"), vip_number=80, backends=backends),
        ServiceEndpoint(name="blue/six", source="red/six", vip=ip_address("fd00::150"), subnet="blue/a"),
        Peering(name="green/red"),
        Peering(name="red/green"),
    )
    with Banner(stations["red/a/web2"], 8060, "web2", version=6):
        reached(stations["red/a/web1"], "fd00::100", 80, "web2 fd00::11")
        reached(stations["green/a/one"], "fd00::12", 8060, "web2 fd01::11")
        until(
            lambda: asked(stations["blue/a/web1"], "fd00::150", 80, timeout_s=2).startswith("web2 fdca:1aba:5b"),
            within_s=60,
            what="red's service answers in blue",
        )
        assert silent(stations["blue/a/web1"], "fd00::150", 8060)
        assert silent(stations["blue/a/web1"], "fd00::12", 8060)
    site.remove(NetworkKind.SERVICE_ENDPOINT, "blue/six")
    site.remove(NetworkKind.PEERING, "green/red")


@pytest.mark.usefixtures("banners")
def test_route_sends_packets_to_a_port_that_forwards_and_a_policy_only_those_of_its_source(
    stations: Stations, site: Site
) -> None:
    address = "192.0.2.77"
    stations["red/a/web2"].ip(("address", "add", f"{address}/32", "dev", "lo"))
    there = NetworkRoute(name="red/there", prefix=ip_network("192.0.2.77/32"), next_hop=ip_address("10.0.1.12"))
    assert silent(stations["red/b/db"], address, 8000)
    site.put(there)
    reached(stations["red/b/db"], address, 8000, "red/a/web2 10.0.2.11")
    site.remove(NetworkKind.ROUTE, "red/there")
    until(lambda: silent(stations["red/b/db"], address, 8000), within_s=60)
    site.put(replace(there, source=ip_network("10.0.2.0/24")))
    reached(stations["red/b/db"], address, 8000, "red/a/web2 10.0.2.11")
    assert silent(stations["red/a/web1"], address, 8000)
    site.remove(NetworkKind.ROUTE, "red/there")


@pytest.mark.usefixtures("banners")
def test_dedicated_line_is_one_vpcs_way_to_a_place_of_its_tenant(stations: Stations, site: Site, lab: Lab) -> None:
    place = "192.168.50.1"
    line = DedicatedLine(
        name="red/dc1",
        vlan=100,
        cidr=ip_network("192.0.2.0/29"),
        address=ip_address("192.0.2.1"),
        peer=ip_address("192.0.2.2"),
        routes=(ip_network("192.168.50.0/24"),),
        hosts=("g1",),
    )
    site.put(line)
    end = lab.customer("dc1", ["192.0.2.2/29"], vlan=100)
    end.ip(("address", "add", f"{place}/32", "dev", "lo"), ("route", "add", "10.0.0.0/16", "via", "192.0.2.1"))
    with Banner(end, 8000, "dc1"):
        reached(stations["red/a/web1"], place, 8000, "dc1 10.0.1.11")
        reached(end, "10.0.1.11", 8000, "red/a/web1 192.0.2.2")
        assert silent(stations["blue/a/web1"], place, 8000)
        end.ip(("route", "add", "default", "via", "192.0.2.1"))
        assert silent(end, INTERNET, 8000)  # a line is no way to elsewhere


def test_group_lets_in_what_its_rules_say_while_they_say_it(stations: Stations, site: Site) -> None:
    green, one = stations["green/a/one"], stations["red/a/web1"]
    site.put(Peering(name="green/red"), Peering(name="red/green"))
    rules = (
        SecurityRule(direction=Direction.INGRESS, protocol=TCP, ports=(9000, 9001), peer=ip_network("10.1.1.11/32")),
    )
    with Banner(one, 9000, "in"), Banner(one, 9002, "out"):
        assert silent(green, "10.0.1.11", 9000)
        opened = site.networks.get(NetworkKind.SECURITY_GROUP, "red/open")
        assert isinstance(opened, SecurityGroup)
        site.put(replace(opened, rules=(*opened.rules, *rules)))
        reached(green, "10.0.1.11", 9000, "in 10.1.1.11")
        assert silent(green, "10.0.1.11", 9002)
        assert asked(stations["red/a/web2"], "10.0.1.11", 9002) == "out 10.0.1.12"  # of the same group
        site.put(opened)
        until(lambda: silent(green, "10.0.1.11", 9000), within_s=60)
    site.remove(NetworkKind.PEERING, "green/red")


def test_port_with_a_bound_sends_and_gets_no_more(stations: Stations, site: Site) -> None:
    one, two = stations["red/a/web1"], stations["red/a/web2"]
    bound = 5_000_000
    free, over_s = bits_through(one, two, 9200, for_s=1)
    assert free / over_s > 4 * bound, "the machine is too slow to say"
    site.put(QosPolicy(name="red/slow", egress_bits_per_s=bound, ingress_bits_per_s=bound))
    site.put(replace(site.port("red/a/web1"), qos="red/slow"))
    for number, (sender, receiver) in enumerate(((one, two), (two, one))):
        came, seconds = bits_through(sender, receiver, 9201 + number, for_s=2)
        assert came <= bound * (seconds + 1) * 1.2, (number, came, seconds)  # a second's worth may come at once
        assert came >= bound * seconds * 0.3, (number, came, seconds)
    site.put(replace(site.port("red/a/web1"), qos=""))


def test_dhcp_hands_out_a_ports_own_address_with_mtu_router_dns_and_domain(stations: Stations) -> None:
    address, options = dhcp4(stations["red/a/web1"])
    assert address == "10.0.1.11"
    found = {number: options.get(number, b"") for number in (3, 6, 15, 26)}
    router = b"\x0a\x00\x01\x01"
    assert found == {3: router, 6: router, 15: b"red.internal", 26: (1400).to_bytes(2)}
    assert dhcp6(stations["red/a/web1"]) == "fd00::11"
    assert dhcp4(stations["red/b/db"], within_s=1)[0] == ""  # a subnet without


def test_dns_knows_ports_and_records_of_its_own_vpc_alone(stations: Stations, site: Site) -> None:
    site.put(DnsRecord(name="red/db", host="db.example", addresses=(ip_address("10.0.2.11"),)))
    red, blue = stations["red/a/web1"], stations["blue/a/web1"]
    assert dns(red, "10.0.1.1", "db.example") == ["10.0.2.11"]
    assert dns(red, "10.0.1.1", "web2.a.red.internal") == ["10.0.1.12"]
    assert dns(red, "10.0.1.1", "web2.a.red.internal", kind=28) == ["fd00::12"]
    assert dns(red, "fd00::1", "db.b.red.internal") == ["10.0.2.11"]
    assert dns(blue, "10.0.1.1", "web1.a.blue.internal") == ["10.0.1.11"]
    assert dns(blue, "10.0.1.1", "db.example", within_s=1) == []
    assert dns(blue, "10.0.1.1", "web2.a.red.internal", within_s=1) == []


@pytest.mark.usefixtures("stations")
def test_no_host_complains_of_an_expression_or_an_action_of_ours(lab: Lab) -> None:
    said = [
        line for host in lab.hosts.values() for line in (host.directory / "ovn-controller.log").read_text().splitlines()
    ]
    assert said, "hosts write no logs"
    assert [line for line in said if "|lflow|" in line or "error parsing" in line or "resubmit" in line] == []
