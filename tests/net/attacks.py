"""Frames with marks that a hostile station sends to a station of another tenant, which may have the same addresses."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from tests.net.packets import (
    ARP,
    BROADCAST,
    ICMP,
    ICMP6,
    IPV4,
    IPV6,
    TCP,
    UDP,
    arp,
    echo,
    ethernet,
    ip,
    neighbour_solicitation,
    tcp,
    udp,
)

VLANS = (0, 1, 2, 100, 4094)
GENEVE = 6081
_marks = itertools.count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """MAC and addresses of a station, as packets name it."""

    mac: str
    address: str
    address6: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """One frame, and the mark by which a sniffer recognises it."""

    what: str
    mark: bytes
    frame: bytes


def attacks(sender: End, victim: End, router_mac: str) -> Iterator[Attack]:
    """Return frames from ``sender`` to ``victim``: to its MAC, to broadcast addresses, and to the sender's router."""
    for what, target in (("straight", victim.mac), ("broadcast", BROADCAST), ("by the router", router_mac)):
        yield from _unicast(f"{what}, honest", sender, victim, sender.mac, target)
        yield from _unicast(f"{what}, spoofed MAC", sender, victim, victim.mac, target)
        yield from _unicast(f"{what}, spoofed IP", victim, victim, sender.mac, target)
        yield from _unicast(f"{what}, spoofed both", victim, victim, victim.mac, target)
        yield from _tagged(what, sender, victim, target)
    yield from _to_everybody(sender, victim)


def new_mark() -> bytes:
    return b"<%08d>" % next(_marks)


def _unicast(what: str, sender: End, victim: End, source: str, target: str) -> Iterator[Attack]:
    """Return one packet of each kind, in a frame from MAC ``source`` to MAC ``target``."""
    for kind, ethertype, mark, body in _packets(sender, victim, source, target):
        yield Attack(what=f"{kind} {what}", mark=mark, frame=ethernet(source, target, ethertype, body))


def _packets(sender: End, victim: End, source: str, target: str) -> Iterator[tuple[str, int, bytes, bytes]]:
    four, six = (sender.address, victim.address), (sender.address6, victim.address6)
    mark = new_mark()
    yield "TCP", IPV4, mark, ip(*four, TCP, tcp(*four, (4000, 8000), mark))
    mark = new_mark()
    yield "TCP answer", IPV4, mark, ip(*four, TCP, tcp(*four, (8000, 4000), mark, flags=0x12))
    mark = new_mark()
    yield "UDP", IPV4, mark, ip(*four, UDP, udp(*four, (4000, 4001), mark))
    mark = new_mark()
    yield "DNS answer", IPV4, mark, ip(*four, UDP, udp(*four, (53, 4001), mark))
    mark = new_mark()
    yield "ICMP", IPV4, mark, ip(*four, ICMP, echo(*four, mark))
    mark = new_mark()
    yield "IPv6 UDP", IPV6, mark, ip(*six, UDP, udp(*six, (4000, 4001), mark))
    mark = new_mark()
    yield "ICMPv6", IPV6, mark, ip(*six, ICMP6, echo(*six, mark))
    for operation, name in ((1, "ARP question"), (2, "ARP answer")):
        mark = new_mark()
        yield name, ARP, mark, arp(operation, source, sender.address, target, victim.address, mark=mark)
    mark = new_mark()
    asked = neighbour_solicitation(*six, source)
    yield "neighbour solicitation", IPV6, mark, ip(*six, ICMP6, asked, ttl=255) + mark
    mark = new_mark()
    yield "a protocol of its own", 0x88B5, mark, mark


def _tagged(what: str, sender: End, victim: End, target: str) -> Iterator[Attack]:
    four = (sender.address, victim.address)
    for vlan in VLANS:
        mark = new_mark()
        body = ip(*four, UDP, udp(*four, (4000, 4001), mark))
        yield Attack(
            what=f"VLAN {vlan} {what}", mark=mark, frame=ethernet(sender.mac, target, IPV4, body, vlan=vlan or 4095)
        )
    mark = new_mark()
    inner = ethernet(sender.mac, target, IPV4, ip(*four, UDP, udp(*four, (4000, 4001), mark)), vlan=100)
    yield Attack(what=f"two tags {what}", mark=mark, frame=inner[:12] + struct.pack("!HH", 0x88A8, 1) + inner[12:])


def _to_everybody(sender: End, victim: End) -> Iterator[Attack]:
    for target, mac in (
        ("255.255.255.255", BROADCAST),
        ("10.0.1.255", BROADCAST),
        ("224.0.0.1", "01:00:5e:00:00:01"),
        ("224.0.0.251", "01:00:5e:00:00:fb"),
        ("239.1.2.3", "01:00:5e:01:02:03"),
    ):
        mark = new_mark()
        body = ip(sender.address, target, UDP, udp(sender.address, target, (4000, 5353), mark))
        yield Attack(what=f"UDP to {target}", mark=mark, frame=ethernet(sender.mac, mac, IPV4, body))
    for target, mac in (
        ("ff02::1", "33:33:00:00:00:01"),
        ("ff02::2", "33:33:00:00:00:02"),
        ("ff05::99", "33:33:00:00:00:99"),
    ):
        mark = new_mark()
        body = ip(sender.address6, target, UDP, udp(sender.address6, target, (4000, 5353), mark))
        yield Attack(what=f"UDP to {target}", mark=mark, frame=ethernet(sender.mac, mac, IPV6, body))
    mark = new_mark()
    body = arp(1, sender.mac, victim.address, BROADCAST, victim.address, mark=mark)
    yield Attack(what="gratuitous ARP", mark=mark, frame=ethernet(sender.mac, BROADCAST, ARP, body))


def at_the_platform(sender: End, router_mac: str, targets: tuple[str, ...], networks: range) -> Iterator[Attack]:
    """Return frames to addresses of the platform, and tunnelled frames made by a station, for every network number."""
    for target in targets:
        ends = (sender.address, target)
        for mac in (router_mac, BROADCAST):
            mark = new_mark()
            body = ip(*ends, TCP, tcp(*ends, (4000, 6642), mark))
            yield Attack(what=f"TCP to {target}", mark=mark, frame=ethernet(sender.mac, mac, IPV4, body))
            mark = new_mark()
            body = ip(*ends, UDP, udp(*ends, (4000, 4001), mark))
            yield Attack(what=f"UDP to {target}", mark=mark, frame=ethernet(sender.mac, mac, IPV4, body))
            mark = new_mark()
            body = ip(*ends, ICMP, echo(*ends, mark))
            yield Attack(what=f"ICMP to {target}", mark=mark, frame=ethernet(sender.mac, mac, IPV4, body))
        mark = new_mark()
        asked = arp(1, sender.mac, sender.address, BROADCAST, target, mark=mark)
        yield Attack(what=f"ARP for {target}", mark=mark, frame=ethernet(sender.mac, BROADCAST, ARP, asked))
        for number in networks:
            mark = new_mark()
            inner = ethernet(sender.mac, BROADCAST, IPV4, ip(*ends, UDP, udp(*ends, (1, 2), mark)))
            tunnelled = struct.pack("!BBHI", 0, 0, 0x6558, number << 8) + inner
            body = ip(*ends, UDP, udp(*ends, (4000, GENEVE), tunnelled))
            frame = ethernet(sender.mac, router_mac, IPV4, body)
            yield Attack(what=f"Geneve {number} to {target}", mark=mark, frame=frame)
