"""Tests that ports cannot configure other ports: forged DHCP, DHCPv6, redirects and neighbour answers are dropped.

Each forged frame carries a mark. The sender sends a canary after the frames, so that a sniffer that has seen the canary would
also have seen a forged frame that was let through. The same kinds of packet from OVN itself still arrive.
"""

from __future__ import annotations

import re
import socket
import struct
from collections.abc import Iterator

import pytest
from tests.daemons.world import until
from tests.net.attacks import Attack, new_mark
from tests.net.ovn_queries import dhcp4, dhcp6
from tests.net.packets import (
    ARP,
    BROADCAST,
    ICMP6,
    IPV4,
    IPV6,
    UDP,
    Sniffer,
    arp,
    ethernet,
    icmp6,
    ip,
    link_local,
    mac_bytes,
    send,
    udp,
)
from tests.net.site import Site
from tests.unit.net.network_builders import port, subnet, vpc

from calabash.adapters.links.interfaces import LinkEnd, LinkSettings, join, set_up
from calabash.adapters.links.interfaces import remove as remove_link
from calabash.adapters.links.namespaces import create, path_of, remove
from calabash.controllers.lab.lab import Lab
from calabash.controllers.lab.station import Station
from calabash.model.network import Direction, SecurityGroup, SecurityRule
from calabash.net.ovn.northbound import naming
from calabash.net.ovn.northbound.rows import Ref
from calabash.net.ovn.translation.vpc import vpc_rows
from calabash.node.ports.switch import OwnedPorts

HOSTS, GATEWAYS = ("h1", "h2"), ("g1",)
GATEWAY, GATEWAY6 = "10.0.1.1", "fd00::1"
ALL_NODES, ALL_NODES_MAC = "ff02::1", "33:33:00:00:00:01"
PLACES = {"red/a/rogue": "h1", "red/a/near": "h1", "red/a/far": "h2", "red/plain/rogue": "h1", "red/plain/far": "h2"}
VICTIMS = {"red/a/rogue": ("red/a/near", "red/a/far"), "red/plain/rogue": ("red/plain/far",)}
_ADVERTISEMENT, _NEIGHBOUR, _REDIRECT = 134, 136, 137
_DESTINATION_OPTIONS = 60

Stations = dict[str, Station]


@pytest.fixture(scope="module")
def stations(site: Site) -> Stations:
    """Create ports in a subnet with DHCP and in one without; their groups admit every packet of the VPC."""
    anything = tuple(
        SecurityRule(direction=direction, peer=peer)
        for direction in Direction
        for peer in (*vpc("red", "0.0.0.0/0").cidrs, *vpc("red", "::/0").cidrs)
    )
    site.put(
        vpc("red", "10.0.0.0/16", "fd00::/56"),
        SecurityGroup(name="red/any", rules=anything),
        subnet("red/a", "10.0.1.0/24", "fd00::/64", served=True),
        subnet("red/plain", "10.0.2.0/24", "fd00:0:0:1::/64"),
    )
    for number, name in enumerate(PLACES, 11):
        four, six = ("10.0.1", "fd00:") if name.startswith("red/a/") else ("10.0.2", "fd00:0:0:1:")
        site.put(port(name, f"{four}.{number}", f"{six}:{number}", groups=("red/any",)))
    return {name: site.station(host, name) for name, host in PLACES.items()}


def forged(rogue: Station, victim: Station) -> Iterator[Attack]:
    """Return frames by which ``rogue`` would configure ``victim`` or pose as its router."""
    for what, mac, target in (("to the port", victim.mac, victim.address()), ("to all", BROADCAST, "255.255.255.255")):
        mark = new_mark()
        ends = (rogue.address(), target)
        body = ip(*ends, UDP, udp(*ends, (67, 68), _offer(victim, rogue) + mark))
        yield Attack(what=f"DHCP offer {what}", mark=mark, frame=ethernet(rogue.mac, mac, IPV4, body))
    own = link_local(rogue.mac)
    for source in (own, rogue.address(6)):
        mark = new_mark()
        ends = (source, link_local(victim.mac))
        body = ip(*ends, UDP, udp(*ends, (547, 546), b"\x02\x12\x34\x56" + mark))
        yield Attack(
            what=f"DHCPv6 advertise from {source}", mark=mark, frame=ethernet(rogue.mac, victim.mac, IPV6, body)
        )
    mark = new_mark()
    ends = (own, victim.address(6))
    better = socket.inet_pton(socket.AF_INET6, own) + socket.inet_pton(socket.AF_INET6, "2001:db8::1")
    redirect = icmp6(*ends, _REDIRECT, bytes(4) + better + mark)
    frame = ethernet(rogue.mac, victim.mac, IPV6, ip(*ends, ICMP6, redirect, ttl=255))
    yield Attack(what="redirect", mark=mark, frame=frame)
    mark = new_mark()
    answer = b"\x20\0\0\0" + socket.inet_pton(socket.AF_INET6, GATEWAY6) + b"\2\1" + mac_bytes(rogue.mac)
    body = ip(*ends, ICMP6, icmp6(*ends, _NEIGHBOUR, answer), ttl=255)
    yield Attack(
        what="neighbour advertisement of the router",
        mark=mark,
        frame=ethernet(rogue.mac, victim.mac, IPV6, body + mark),
    )
    mark = new_mark()
    body = arp(2, rogue.mac, GATEWAY, victim.mac, victim.address(), mark=mark)
    yield Attack(what="ARP answer of the router", mark=mark, frame=ethernet(rogue.mac, victim.mac, ARP, body))


def test_forged_configuration_of_a_port_reaches_no_other_port(stations: Stations) -> None:
    for name, victims in VICTIMS.items():
        rogue = stations[name]
        for victim in (stations[each] for each in victims):
            sent = list(forged(rogue, victim))
            with Sniffer(victim) as sniffer:
                for _ in range(2):
                    send(rogue, *(attack.frame for attack in sent))
                    _canary(rogue, victim, sniffer)
                arrived = [attack.what for attack in sent if sniffer.frames_with(attack.mark)]
            assert arrived == [], f"{victim.name} received them from {name}"


def advertisements(rogue: Station, mac: str) -> Iterator[bytes]:
    """Return router advertisements of ``rogue`` to all nodes and to that MAC, plain and behind destination options."""
    own = link_local(rogue.mac)
    for frame_to, target in ((ALL_NODES_MAC, ALL_NODES), (mac, ALL_NODES), (mac, link_local(mac))):
        advert = icmp6(own, target, _ADVERTISEMENT, _advertisement(rogue))
        yield ethernet(rogue.mac, frame_to, IPV6, ip(own, target, ICMP6, advert, ttl=255))
        options = struct.pack("!BB", ICMP6, 0) + b"\1\4\0\0\0\0"  # one PadN option
        yield ethernet(rogue.mac, frame_to, IPV6, ip(own, target, _DESTINATION_OPTIONS, options + advert, ttl=255))


def test_agent_port_keeps_routes_and_addresses_despite_router_advertisements_of_another_port(
    site: Site, stations: Stations, lab: Lab
) -> None:
    """OVN 25.03 lets router advertisements of ports through before every access list, so that the receiver ignores them."""
    name, rogue, host = "red/a/program", stations["red/a/rogue"], lab.host("h2")
    site.put(port(name, "10.0.1.99", "fd00::99", groups=("red/any",)))
    made = site.port(name)
    within, outer = path_of(f"{lab.record.prefix}-program"), LinkEnd(namespace=path_of(host.namespace), name="agents")
    create(within.name)
    inner = LinkEnd(namespace=within, name="eth0")
    join(outer, inner)
    settings = LinkSettings(mac=made.mac, addresses=("10.0.1.99/24", "fd00::99/64"), routes=(("::/0", GATEWAY6),))
    set_up(inner, settings)
    set_up(outer)
    ports = OwnedPorts(host.ovs_socket, outer.namespace)
    program = Station(name=name, namespace=within.name, card="eth0", mac=made.mac, addresses=settings.addresses)  # type: ignore[arg-type]
    try:
        ports.plug(outer.name, iface_id=name, owner="somebody")
        until(lambda: ports.up(outer.name), within_s=60, what="the port is carried out")
        before = _routes(program)
        assert f"default via {GATEWAY6}" in before
        with Sniffer(program) as sniffer:
            for _ in range(2):
                send(rogue, *advertisements(rogue, made.mac))
                _canary(rogue, program, sniffer)
        assert _routes(program) == before
    finally:
        ports.unplug(outer.name)
        ports.close()
        remove_link(outer)
        remove(within.name)


def _routes(station: Station) -> str:
    """Return the IPv6 routes and addresses inside, without their lifetimes."""
    told = [station.run("ip", "-6", *words).stdout for words in (("route",), ("-o", "address"))]
    return re.sub(r"expires \d+sec|valid_lft.*", "", "".join(told))


def test_dhcp_offer_is_not_routed_from_another_subnet_of_the_vpc(site: Site, stations: Stations) -> None:
    rogue, victim = stations["red/plain/rogue"], stations["red/a/far"]
    rows = vpc_rows(site.networks, "red", hosts=site.hosts)
    router = str(rows[Ref("Logical_Router_Port", naming.router_port("red/plain"))]["mac"])
    ends = (rogue.address(), victim.address())
    mark, canary = new_mark(), new_mark()

    def frame(numbers: tuple[int, int], payload: bytes) -> bytes:
        return ethernet(rogue.mac, router, IPV4, ip(*ends, UDP, udp(*ends, numbers, payload)))

    with Sniffer(victim) as sniffer:
        send(rogue, frame((4000, 68), canary))
        assert sniffer.wait(canary)
        canary = new_mark()
        send(rogue, frame((67, 68), mark), frame((4000, 68), canary))
        assert sniffer.wait(canary)
        assert sniffer.frames_with(mark) == []


def test_ovns_own_dhcp_and_router_advertisements_reach_the_port(site: Site, stations: Stations) -> None:
    rows = vpc_rows(site.networks, "red", hosts=site.hosts)
    router = str(rows[Ref("Logical_Router_Port", naming.router_port("red/a"))]["mac"])
    for name in ("red/a/near", "red/a/far", "red/a/rogue"):
        station = stations[name]
        assert dhcp4(station)[0] == station.address()
        assert dhcp6(station) == station.address(6)
        own = link_local(station.mac)
        solicitation = icmp6(own, "ff02::2", 133, bytes(4) + b"\1\1" + mac_bytes(station.mac))
        with Sniffer(station) as sniffer:
            send(
                station,
                ethernet(station.mac, "33:33:00:00:00:02", IPV6, ip(own, "ff02::2", ICMP6, solicitation, ttl=255)),
            )
            assert sniffer.wait(
                socket.inet_pton(socket.AF_INET6, link_local(router)) + socket.inet_pton(socket.AF_INET6, own)
            )


def _offer(victim: Station, rogue: Station) -> bytes:
    """Return a BOOTP reply that names ``rogue`` as the router and the DNS server, without the mark."""
    head = struct.pack("!BBBB4sHH4s4s4s4s", 2, 1, 6, 0, b"\x12\x34\x56\x78", 0, 0x8000, *map(socket.inet_aton, (
        "0.0.0.0", victim.address(), rogue.address(), "0.0.0.0")))  # fmt: skip
    own = socket.inet_aton(rogue.address())
    options = b"\x35\x01\x02" + b"\x36\x04" + own + b"\x03\x04" + own + b"\x06\x04" + own + b"\xff"
    return head + mac_bytes(victim.mac).ljust(16, b"\0") + bytes(192) + b"\x63\x82\x53\x63" + options


def _advertisement(rogue: Station) -> bytes:
    """Return the body of a router advertisement after type, code and checksum: a default route and an address prefix."""
    prefix = struct.pack("!BBBBIII", 3, 4, 64, 0xC0, 3600, 3600, 0) + socket.inet_pton(socket.AF_INET6, "2001:db8::")
    return struct.pack("!BBHII", 64, 0, 1800, 0, 0) + b"\1\1" + mac_bytes(rogue.mac) + prefix


def _canary(sender: Station, receiver: Station, sniffer: Sniffer) -> None:
    """Send an honest datagram and wait until the sniffer has seen it."""
    for version, kind in ((4, IPV4), (6, IPV6)):
        mark = new_mark()
        ends = (sender.address(version), receiver.address(version))
        send(sender, ethernet(sender.mac, receiver.mac, kind, ip(*ends, UDP, udp(*ends, (4000, 4001), mark))))
        assert sniffer.wait(mark), f"{receiver.name} sees no canary of {sender.name}"
