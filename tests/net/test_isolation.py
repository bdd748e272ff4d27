"""Tests that packets of a tenant reach neither another tenant with the same addresses on the same hosts nor the platform.

A sniffer that has seen nothing proves that nothing came, as it has seen the canary that its own tenant sent it afterwards by
the same way; and all is sent twice with a canary after each, so that what a first packet is slow to set up is seen.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable, Iterator
from contextlib import ExitStack

import pytest
from tests.net.attacks import GENEVE, Attack, End, at_the_platform, attacks, new_mark
from tests.net.packets import IPV4, UDP, Sniffer, ethernet, ip, send, udp
from tests.net.site import Site
from tests.net.station_sockets import Banner, asked, pings

from calabash.controllers.lab.lab import Lab
from calabash.controllers.lab.station import Station
from calabash.model.network import Port, Subnet, Vpc
from calabash.net.ovn.northbound import naming
from calabash.net.ovn.northbound.rows import Ref
from calabash.net.ovn.translation.vpc import vpc_rows

HOSTS, GATEWAYS = ("h1", "h2"), ("g1",)
TENANTS = ("red", "blue")
PLACES = {"one": "h1", "two": "h2", "three": "h1"}
RANGES = (ipaddress.ip_network("10.0.1.0/24"), ipaddress.ip_network("fd00:1::/64"))
_CONNECTIONS, _SOURCE_PORTS = 320, 16
FIRST = 11  # 10.0.1.11 and fd00:1::b are both tenants' first port
CARDS = (("fab", "h1-m0"), ("fab", "h1-u0"), ("fab", "h1-x0"), ("h2", "br-phy"), ("ctl", "m0"), ("world", "x0"))
PLATFORM = ("172.30.0.1", "172.30.0.12", "172.31.0.11", "172.31.0.12", "169.254.169.254")

Stations = dict[str, Station]


@pytest.fixture(scope="module")
def stations(site: Site) -> Stations:
    """Create three ports of each tenant with the same addresses, and one of blue with an address that red has not."""
    for tenant in TENANTS:
        site.put(
            Vpc(name=tenant, cidrs=(ipaddress.ip_network("10.0.0.0/16"), ipaddress.ip_network("fd00:1::/56"))),
            Subnet(name=f"{tenant}/a", cidrs=RANGES),
            *(port(tenant, place, FIRST + number) for number, place in enumerate(PLACES)),
        )
    site.put(port("blue", "four", 99))
    places = PLACES | {"four": "h2"}
    names = [each.name for each in site.networks.all(Port)]
    return {name: site.station(places[name.rsplit("/", 1)[1]], name) for name in names}


def port(tenant: str, name: str, number: int) -> Port:
    return Port(name=f"{tenant}/a/{name}", addresses=tuple(network[number] for network in RANGES))


def stations_of_tenant(stations: Stations, tenant: str) -> list[Station]:
    return [station for name, station in stations.items() if name.startswith(tenant + "/")]


def end(station: Station) -> End:
    return End(mac=station.mac, address=station.address(4), address6=station.address(6))


def router_mac(site: Site, tenant: str) -> str:
    rows = vpc_rows(site.networks, tenant, hosts=site.hosts)
    return str(rows[Ref("Logical_Router_Port", naming.router_port(f"{tenant}/a"))]["mac"])


@pytest.fixture
def sniffers(stations: Stations) -> Iterator[dict[str, Sniffer]]:
    with ExitStack() as stack:
        yield {name: stack.enter_context(Sniffer(station)) for name, station in stations.items()}


def canary(sender: Station, receiver: Station, sniffer: Sniffer) -> None:
    """Send a marked frame that the sniffer must see, which proves that it works."""
    mark, ends = new_mark(), (sender.address(), receiver.address())
    send(sender, ethernet(sender.mac, receiver.mac, IPV4, ip(*ends, UDP, udp(*ends, (4000, 4001), mark))))
    assert sniffer.wait(mark), f"{receiver.name} sees no canary of {sender.name}"


def canaries(stations: Stations, sniffers: dict[str, Sniffer]) -> None:
    """Send a canary to every station from each other station of its tenant, on the same host and on the other."""
    for tenant in TENANTS:
        for receiver in stations_of_tenant(stations, tenant):
            for sender in stations_of_tenant(stations, tenant):
                if sender is not receiver:
                    canary(sender, receiver, sniffers[receiver.name])


def leaked(sent: Iterable[Attack], sniffers: Iterable[Sniffer]) -> list[str]:
    known = {attack.mark: attack.what for attack in sent}
    found = []
    for sniffer in sniffers:
        sniffer.frames_with(b"")
        for frame in sniffer.frames:
            found += [f"{what} at {sniffer.station.name}" for mark, what in known.items() if mark in frame]
    return found


def test_same_address_is_each_tenants_own(stations: Stations) -> None:
    with ExitStack() as stack:
        for name, station in stations.items():
            stack.enter_context(Banner(station, 8000, name))
            stack.enter_context(Banner(station, 8000, name, version=6))
        for tenant in TENANTS:
            for caller in stations_of_tenant(stations, tenant):
                for called in stations_of_tenant(stations, tenant):
                    for version in (4, 6):
                        told = asked(caller, called.address(version), 8000)
                        assert told == f"{called.name} {caller.address(version)}"
        for caller in stations_of_tenant(stations, "red"):
            only_blue = stations["blue/a/four"]
            for version in (4, 6):
                assert asked(caller, only_blue.address(version), 8000, timeout_s=0.5).startswith("no: ")
                assert not pings(caller, only_blue.address(version), timeout_s=0.5)
    assert pings(stations["blue/a/one"], "10.0.1.99")
    assert pings(stations["blue/a/one"], str(RANGES[1][99]))


def test_no_frame_of_one_tenant_comes_to_another(site: Site, stations: Stations, sniffers: dict[str, Sniffer]) -> None:
    sent: dict[str, list[Attack]] = {}
    for name, station in stations.items():
        own, other = TENANTS if name.startswith("red/") else TENANTS[::-1]
        mac = router_mac(site, own)
        sent[name] = [
            each for victim in stations_of_tenant(stations, other) for each in attacks(end(station), end(victim), mac)
        ]
    for _ in range(2):
        for name, frames in sent.items():
            send(stations[name], *(attack.frame for attack in frames))
        canaries(stations, sniffers)
    for tenant, other in (TENANTS, TENANTS[::-1]):
        frames = [attack for name, each in sent.items() if name.startswith(tenant + "/") for attack in each]
        assert len(frames) > 1000
        assert leaked(frames, (sniffers[station.name] for station in stations_of_tenant(stations, other))) == []


def test_what_is_sent_honestly_does_arrive_in_the_own_tenant(
    site: Site, stations: Stations, sniffers: dict[str, Sniffer]
) -> None:
    """The same kinds of frames, sent to a station of the same tenant, pass the switch."""
    sender, receiver = stations["red/a/one"], stations["red/a/two"]
    wanted = ("TCP", "UDP", "ICMP", "IPv6 UDP", "ICMPv6", "ARP question", "ARP answer", "neighbour solicitation")
    names = {f"{kind} straight, honest" for kind in wanted} | {"UDP to 224.0.0.1", "UDP to ff02::1"}
    tried = attacks(end(sender), end(receiver), router_mac(site, "red"))
    sent = [attack for attack in tried if attack.what in names]
    assert len(sent) == len(names)
    send(sender, *(attack.frame for attack in sent))
    missing = [attack.what for attack in sent if not sniffers[receiver.name].wait(attack.mark, timeout_s=60)]
    assert missing == []


def test_spoofer_is_not_heard_in_its_own_tenant_either(
    site: Site, stations: Stations, sniffers: dict[str, Sniffer]
) -> None:
    sender, receiver = stations["red/a/one"], stations["red/a/two"]
    spoofed = End(mac=stations["red/a/three"].mac, address="10.0.1.13", address6=str(RANGES[1][13]))
    for _ in range(2):
        sent = [
            attack
            for attack in attacks(spoofed, end(receiver), router_mac(site, "red"))
            if "honest" in attack.what or attack.what.startswith("UDP to")
        ]
        send(sender, *(attack.frame for attack in sent))
        canary(sender, receiver, sniffers[receiver.name])
        assert leaked(sent, sniffers.values()) == []


def test_client_that_uses_its_ports_again_leaves_its_switch_alive(lab: Lab, stations: Stations) -> None:
    """Open vSwitch before 3.1.3 aborts at the first connection of a source port that it has tracked before."""
    before = lab.daemons()
    client, server = stations["red/a/one"], stations["red/a/two"]
    told = []
    with Banner(server, 8001, "two"):
        for number in range(_CONNECTIONS):
            with client.socket(socket.AF_INET, socket.SOCK_STREAM) as caller:
                caller.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                caller.settimeout(60)
                caller.bind((client.address(), 20000 + number % _SOURCE_PORTS))
                caller.connect((server.address(), 8001))
                told.append(caller.recv(100))
                assert caller.recv(100) == b""
    assert set(told) == {f"two {client.address()}".encode()}
    assert lab.daemons() == before


def test_nothing_of_a_tenant_comes_to_the_platforms_own_networks(site: Site, lab: Lab, stations: Stations) -> None:
    """Management, the underlay and metadata: not in the clear, and not inside a tunnel of the tenant's own making."""
    sender = stations["red/a/one"]
    sent = list(at_the_platform(end(sender), router_mac(site, "red"), PLATFORM, range(1, 12)))
    cards = [
        Station(name=f"{place}:{card}", namespace=f"{lab.record.prefix}-{place}", card=card, mac="", addresses=())
        for place, card in CARDS
    ]
    with ExitStack() as stack:
        sniffers = [stack.enter_context(Sniffer(card)) for card in cards]
        receiver = stack.enter_context(Sniffer(stations["red/a/two"]))
        for _ in range(2):
            send(sender, *(attack.frame for attack in sent))
            canary(sender, stations["red/a/two"], receiver)
        mark = new_mark()
        _speak(lab, mark)
        for sniffer in sniffers:
            assert sniffer.wait(mark), f"{sniffer.station.name} sees no canary"
        # Broadcasts of a tenant pass the underlay inside its own tunnels to its own ports: that is where they belong.
        clear = [each for each in leaked(sent, sniffers) if not each.endswith("h1-u0")]
        assert clear == []
        assert [
            frame for attack in sent for frame in sniffers[1].frames_with(attack.mark) if not _tunnelled(frame)
        ] == []
    assert asked(sender, "172.30.0.1", 6642, timeout_s=0.5).startswith("no: ")
    assert not pings(sender, "172.31.0.12", timeout_s=0.5)


def _speak(lab: Lab, mark: bytes) -> None:
    """Send a broadcast on each of the platform's networks, from h1 itself."""
    for card in ("m0", "u0", "x0"):
        host = Station(name="h1", namespace=f"{lab.record.prefix}-h1", card=card, mac="", addresses=())
        send(host, ethernet("02:00:00:00:00:01", "ff:ff:ff:ff:ff:ff", 0x88B6, mark))


def _tunnelled(frame: bytes) -> bool:
    """Return True if the frame is a Geneve packet from the tunnel address of h1."""
    tunnel, number = ipaddress.ip_address("172.31.0.11").packed, GENEVE.to_bytes(2, "big")
    return frame[12:14] == b"\x08\x00" and frame[26:30] == tunnel and frame[36:38] == number
