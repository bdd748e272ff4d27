"""Tests that a VPC admits only answers from outside, for every sender and method, and emits no internal address."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from tests.net.attacks import Attack, End, attacks, new_mark
from tests.net.packets import IPV4, UDP, Sniffer, ethernet, ip, send, udp
from tests.net.site import Site
from tests.net.station_sockets import Banner, asked, pings

from calabash.controllers.lab.lab import Lab
from calabash.controllers.lab.links import INTERNET_ADDRESS
from calabash.controllers.lab.station import Station
from calabash.model.network import NetworkGateway, Port, Subnet, Uplink, Vpc
from calabash.net.ovn.northbound import naming
from calabash.net.ovn.northbound.rows import Ref
from calabash.net.ovn.translation.vpc import vpc_rows

HOSTS, GATEWAYS = ("h1", "h2"), ("g1", "g2")
TENANTS = ("red", "blue")
RANGE = ipaddress.ip_network("10.0.1.0/24")
Stations = dict[str, Station]


@pytest.fixture(scope="module")
def stations(site: Site) -> Stations:
    """Create a station of each tenant with the same address, and a gateway for each on one uplink."""
    site.put(
        Uplink(name="isp", cidr=ipaddress.ip_network("198.51.100.0/24"), gateway=ipaddress.ip_address("198.51.100.1")),
    )
    for tenant in TENANTS:
        site.put(
            Vpc(name=tenant, cidrs=(ipaddress.ip_network("10.0.0.0/16"),)),
            Subnet(name=f"{tenant}/a", cidrs=(RANGE,)),
            Port(name=f"{tenant}/a/one", addresses=(RANGE[11],)),
            NetworkGateway(name=f"{tenant}/out", snat=True),
        )
    return {tenant: site.station("h1" if tenant == "red" else "h2", f"{tenant}/a/one") for tenant in TENANTS}


def gateway(site: Site, tenant: str) -> End:
    """Return the VPC's router as the provider's network sees it."""
    found = site.networks.find(NetworkGateway, f"{tenant}/out")
    assert found is not None
    assert found.address is not None
    rows = vpc_rows(site.networks, tenant, hosts=site.hosts)
    mac = str(rows[Ref("Logical_Router_Port", naming.router_port(naming.uplink_link(tenant)))]["mac"])
    return End(mac=mac, address=str(found.address), address6="fd00::1")


@pytest.fixture(autouse=True)
def banner(lab: Lab) -> Iterator[str]:
    """Run a server outside that answers with its caller's address; remove routes that a test set."""
    with Banner(lab.world, 8000, "world"):
        yield "world"
    lab.world.run("ip", "route", "flush", "10.0.0.0/8")


def test_two_tenants_with_one_address_reach_the_outside_each_with_its_own(site: Site, stations: Stations) -> None:
    told = {tenant: asked(stations[tenant], INTERNET_ADDRESS, 8000, timeout_s=60) for tenant in TENANTS}
    assert told == {tenant: f"world {gateway(site, tenant).address}" for tenant in TENANTS}
    assert len(set(told.values())) == 2


def test_who_routes_a_tenants_range_to_its_router_does_not_get_in(site: Site, lab: Lab, stations: Stations) -> None:
    """The provider's neighbour has only to set a route: SNAT alone would let it in."""
    world = lab.world
    for tenant in TENANTS:
        lab.world.ip(("route", "replace", str(RANGE), "via", gateway(site, tenant).address))
        station = stations[tenant]
        with Banner(station, 8000, "inside"), Sniffer(station) as sniffer:
            mark = new_mark()
            assert asked(world, station.address(), 8000, timeout_s=1).startswith("no: ")
            assert not pings(world, station.address(), timeout_s=1, payload=mark)
            with world.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
                sender.sendto(mark, (station.address(), 4001))
            # An answer is let in, and the sniffer sees it: the canary.
            assert asked(station, INTERNET_ADDRESS, 8000, timeout_s=60) == f"world {gateway(site, tenant).address}"
            assert sniffer.frames_with(b"world ")
            assert sniffer.frames_with(mark) == []


def test_no_frame_from_outside_comes_to_a_tenant(site: Site, lab: Lab, stations: Stations) -> None:
    # A host on the segment of the provider's router. One that took the router's own address would take it from all hosts there.
    outside = End(mac=_mac(lab.world), address="198.51.100.77", address6="2001:db8:51::77")
    platform = End(mac=_mac(lab.world), address="172.30.0.1", address6="fe80::1")
    inside = End(mac="0a:ff:00:00:00:01", address="10.0.1.12", address6="fd00::12")
    sent: list[Attack] = []
    for tenant, station in stations.items():
        victim = End(mac=station.mac, address=station.address(), address6="fd00::11")
        for sender in (outside, platform, inside):
            sent += attacks(sender, victim, gateway(site, tenant).mac)
    with ExitStack() as stack:
        sniffers = [stack.enter_context(Sniffer(station)) for station in stations.values()]
        for _ in range(2):
            send(lab.world, *(attack.frame for attack in sent))
            for tenant, sniffer in zip(TENANTS, sniffers, strict=True):
                assert asked(stations[tenant], INTERNET_ADDRESS, 8000, timeout_s=60).startswith("world ")
                assert sniffer.frames_with(b"world ")
        marks = {attack.mark: attack.what for attack in sent}
        leaked = [marks[mark] for sniffer in sniffers for mark in marks if sniffer.frames_with(mark)]
    assert len(sent) > 400
    assert leaked == []


def test_nothing_leaves_with_an_address_of_inside_or_for_the_platform(site: Site, lab: Lab, stations: Stations) -> None:
    station = stations["red"]
    rows = vpc_rows(site.networks, "red", hosts=site.hosts)
    router = str(rows[Ref("Logical_Router_Port", naming.router_port("red/a"))]["mac"])
    closed = ("172.30.0.1", "172.31.0.12", "169.254.169.254")
    marks: dict[bytes, str] = {}
    with Sniffer(lab.world) as sniffer:
        for _ in range(2):
            for target in (*closed, INTERNET_ADDRESS, gateway(site, "blue").address):
                mark = new_mark()
                marks[mark] = target
                body = udp(station.address(), target, (4000, 4001), mark)
                send(station, ethernet(station.mac, router, IPV4, ip(station.address(), target, UDP, body)))
            last = new_mark()
            body = udp(station.address(), INTERNET_ADDRESS, (4000, 4002), last)
            send(station, ethernet(station.mac, router, IPV4, ip(station.address(), INTERNET_ADDRESS, UDP, body)))
            assert sniffer.wait(last)
        came = {
            target: [f for mark, t in marks.items() if t == target for f in sniffer.frames_with(mark)]
            for target in marks.values()
        }
    assert all(came[target] == [] for target in closed)
    assert len(came[INTERNET_ADDRESS]) == 2
    own = ipaddress.ip_address(gateway(site, "red").address).packed
    assert all(frame[26:30] == own for frames in came.values() for frame in frames)


def _mac(station: Station) -> str:
    return station.run("ip", "-br", "link", "show", station.card).stdout.split()[2]
