"""Packets of tests: frames made byte by byte, sent and received through AF_PACKET sockets inside stations.

A sniffer sees what reaches a network device after its switch has let it through. That nothing arrives proves something only
if the same sniffer has seen a canary, so the sniffer looks for a mark in the frame's payload.
"""

from __future__ import annotations

import ipaddress
import select
import socket
import struct
import time
from types import TracebackType
from typing import Self

from calabash.controllers.lab.station import Station

BROADCAST = "ff:ff:ff:ff:ff:ff"
ARP, IPV4, VLAN, IPV6 = 0x0806, 0x0800, 0x8100, 0x86DD
ICMP, TCP, UDP, ICMP6 = 1, 6, 17, 58
_ETH_P_ALL = 3
_QUEUE_BYTES = 4 * 2**20
_SO_RCVBUFFORCE = 33


def mac_bytes(text: str) -> bytes:
    return bytes.fromhex(text.replace(":", ""))


def ethernet(source: str, target: str, kind: int, body: bytes, *, vlan: int = 0) -> bytes:
    """Return a frame, with a VLAN tag if ``vlan`` is given."""
    tag = struct.pack("!HH", VLAN, vlan) if vlan else b""
    return (mac_bytes(target) + mac_bytes(source) + tag + struct.pack("!H", kind) + body).ljust(60, b"\0")


def arp(operation: int, mac: str, address: str, target_mac: str, target: str, *, mark: bytes = b"") -> bytes:
    """Return the body of an ARP packet (1 a request, 2 a reply), followed by a mark."""
    head = struct.pack("!HHBBH", 1, IPV4, 6, 4, operation)
    pair = mac_bytes(mac) + socket.inet_aton(address) + mac_bytes(target_mac) + socket.inet_aton(target)
    return head + pair + mark


def ip(source: str, target: str, protocol: int, body: bytes, *, ttl: int = 64) -> bytes:
    """Return an IPv4 or IPv6 packet around a body whose checksum is already right."""
    if ipaddress.ip_address(source).version == 6:
        head = struct.pack("!IHBB", 6 << 28, len(body), protocol, ttl)
        return head + socket.inet_pton(socket.AF_INET6, source) + socket.inet_pton(socket.AF_INET6, target) + body
    ends = socket.inet_aton(source) + socket.inet_aton(target)
    head = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(body), 1, 0, ttl, protocol, 0) + ends
    return head[:10] + struct.pack("!H", _checksum(head)) + head[12:] + body


def udp(source: str, target: str, numbers: tuple[int, int], payload: bytes) -> bytes:
    length = 8 + len(payload)
    unsummed = struct.pack("!HHHH", *numbers, length, 0) + payload
    total = _checksum(_pseudo(source, target, UDP, length) + unsummed) or 0xFFFF
    return unsummed[:6] + struct.pack("!H", total) + payload


def tcp(source: str, target: str, numbers: tuple[int, int], payload: bytes = b"", *, flags: int = 0x02) -> bytes:
    """Return a TCP segment: a SYN unless flags say otherwise."""
    unsummed = struct.pack("!HHIIBBHHH", *numbers, 1000, 0, 0x50, flags, 65535, 0, 0) + payload
    total = _checksum(_pseudo(source, target, TCP, len(unsummed)) + unsummed)
    return unsummed[:16] + struct.pack("!H", total) + unsummed[18:]


def echo(source: str, target: str, payload: bytes) -> bytes:
    """Return an ICMP echo request, of the version of the addresses."""
    if ipaddress.ip_address(source).version == 6:
        body = struct.pack("!BBHHH", 128, 0, 0, 7, 1) + payload
        total = _checksum(_pseudo(source, target, ICMP6, len(body)) + body)
    else:
        body = struct.pack("!BBHHH", 8, 0, 0, 7, 1) + payload
        total = _checksum(body)
    return body[:2] + struct.pack("!H", total) + body[4:]


def neighbour_solicitation(source: str, target: str, mac: str) -> bytes:
    """Return an ICMPv6 neighbour solicitation, as a body for :func:`ip` to the target itself."""
    return icmp6(source, target, 135, bytes(4) + socket.inet_pton(socket.AF_INET6, target) + b"\1\1" + mac_bytes(mac))


def icmp6(source: str, target: str, kind: int, rest: bytes) -> bytes:
    """Return an ICMPv6 message of type ``kind`` and code 0 with its checksum, as a body for :func:`ip`."""
    body = struct.pack("!BBH", kind, 0, 0) + rest
    total = _checksum(_pseudo(source, target, ICMP6, len(body)) + body)
    return body[:2] + struct.pack("!H", total) + body[4:]


def link_local(mac: str) -> str:
    """Return the link-local IPv6 address (EUI-64) of a device with this MAC."""
    raw = mac_bytes(mac)
    own = bytes((raw[0] ^ 2, *raw[1:3], 0xFF, 0xFE, *raw[3:]))
    return str(ipaddress.IPv6Address(bytes.fromhex("fe80000000000000") + own))


def send(station: Station, *frames: bytes) -> None:
    """Send frames unchanged from a station's network device."""
    with station.socket(socket.AF_PACKET, socket.SOCK_RAW) as card:
        card.bind((station.card, 0))
        for frame in frames:
            card.send(frame)


class Sniffer:
    """Frames that arrive at a station's network device while the context is entered."""

    def __init__(self, station: Station) -> None:
        self.station = station
        self._card = station.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL))
        self._card.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _QUEUE_BYTES)
        self._card.bind((station.card, _ETH_P_ALL))
        self._card.setblocking(False)
        self.frames: list[bytes] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._card.close()

    def frames_with(self, mark: bytes) -> list[bytes]:
        """Return the frames so far that contain the mark."""
        self._take(0)
        return [frame for frame in self.frames if mark in frame]

    def wait(self, mark: bytes, *, timeout_s: float = 60) -> bool:
        """Return True if a frame with the mark arrives within that time."""
        end = time.monotonic() + timeout_s
        while not (found := any(mark in frame for frame in self.frames)) and (left := end - time.monotonic()) > 0:
            self._take(left)
        return found

    def _take(self, timeout_s: float) -> None:
        """Read the pending frames; if there are none, wait for the first one."""
        waiting = select.poll()
        waiting.register(self._card, select.POLLIN)
        waiting.poll(timeout_s * 1000)
        try:
            while True:
                frame, origin = self._card.recvfrom(65536)
                if origin[2] != socket.PACKET_OUTGOING:
                    self.frames.append(frame)
        except BlockingIOError:
            return


def _checksum(data: bytes) -> int:
    padded = data + b"\0" * (len(data) % 2)
    total: int = sum(struct.unpack(f"!{len(padded) // 2}H", padded))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def _pseudo(source: str, target: str, protocol: int, length: int) -> bytes:
    version6 = ipaddress.ip_address(source).version == 6
    family = socket.AF_INET6 if version6 else socket.AF_INET
    ends = socket.inet_pton(family, source) + socket.inet_pton(family, target)
    return ends + (struct.pack("!II", length, protocol) if version6 else struct.pack("!HH", protocol, length))
