"""Clients for what OVN itself answers: DHCPv4, DHCPv6 and DNS, byte by byte; and a measurement of throughput."""

from __future__ import annotations

import ipaddress
import socket
import struct
import threading
import time

from tests.net.packets import mac_bytes

from calabash.adapters.ovn.northbound import Northbound
from calabash.controllers.lab.station import Station

_ASK_S = 0.5
_COOKIE = b"\x63\x82\x53\x63"
_NUMBER = b"\x12\x34\x56\x78"


def dhcp4(station: Station, *, within_s: float = 60) -> tuple[str, dict[int, bytes]]:
    """Return the offered address and its options; ("", {}) if there is no offer."""
    head = struct.pack("!BBBB4sHHIIII", 1, 1, 6, 0, _NUMBER, 0, 0x8000, 0, 0, 0, 0)
    options = b"\x35\x01\x01" + b"\x37\x06\x01\x03\x06\x0f\x1a\x33" + b"\xff"  # DISCOVER, with what it wants to know
    ask = head + mac_bytes(station.mac).ljust(16, b"\0") + bytes(192) + _COOKIE + options
    with station.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, station.card.encode())
        client.bind(("0.0.0.0", 68))
        got = _answer(client, ask, ("255.255.255.255", 67), within_s)
    if got[4:8] != _NUMBER:
        return "", {}
    return str(ipaddress.IPv4Address(got[16:20])), _options(got[240:])


def _options(data: bytes) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    while data and data[0] != 255:
        if data[0] == 0:
            data = data[1:]
            continue
        length = data[1]
        found[data[0]] = data[2 : 2 + length]
        data = data[2 + length :]
    return found


def dhcp6(station: Station, *, within_s: float = 60) -> str:
    """Return the advertised address; "" if there is none."""
    identity = b"\x00\x03\x00\x01" + mac_bytes(station.mac)
    wanted = struct.pack("!HHIII", 3, 12, 1, 0, 0)
    ask = b"\x01\x12\x34\x56" + struct.pack("!HH", 1, len(identity)) + identity + wanted
    with station.socket(socket.AF_INET6, socket.SOCK_DGRAM) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, station.card.encode())
        client.bind(("::", 546))
        got = _answer(client, ask, ("ff02::1:2", 547), within_s)
    place = got.find(struct.pack("!HH", 5, 24))  # an address, within what was asked for
    return str(ipaddress.IPv6Address(got[place + 4 : place + 20])) if got[:1] == b"\x02" and place > 0 else ""


def dns(station: Station, server: str, name: str, *, kind: int = 1, within_s: float = 60) -> list[str]:
    """Return the addresses of a DNS answer; [] if the name is unknown or there is no answer. ``kind`` 1 is A, 28 AAAA."""
    labels = b"".join(bytes((len(part),)) + part.encode() for part in name.split(".")) + b"\0"
    ask = struct.pack("!HHHHHH", 0x1234, 0x0100, 1, 0, 0, 0) + labels + struct.pack("!HH", kind, 1)
    family = socket.AF_INET6 if ":" in server else socket.AF_INET
    with station.socket(family, socket.SOCK_DGRAM) as client:
        got = _answer(client, ask, (server, 53), within_s)
    size = 16 if kind == 28 else 4
    found = []
    rest = got[len(ask) :]
    while len(rest) > size:
        place = rest.find(struct.pack("!HH", kind, 1))
        if place < 0:
            break
        data = rest[place + 10 : place + 10 + size]
        found.append(str(ipaddress.ip_address(data)))
        rest = rest[place + 10 + size :]
    return sorted(found)


def _answer(client: socket.socket, ask: bytes, to: tuple[str, int], within_s: float) -> bytes:
    """Return the first answer, repeating the question until there is one; b"" if there is none in time."""
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        client.settimeout(_ASK_S)
        try:
            client.sendto(ask, to)
            return client.recv(4096)
        except OSError:
            continue
    return b""


def bits_through(sender: Station, receiver: Station, number: int, *, for_s: float) -> tuple[float, float]:
    """Return the bits that one TCP stream transferred, and the seconds from its first byte to its last."""
    with receiver.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.bind(("0.0.0.0", number))
        listener.listen(1)
        listener.settimeout(60)
        end = threading.Event()
        source = threading.Thread(target=_pour, args=(sender, receiver.address(), number, end))
        source.start()
        try:
            client, _ = listener.accept()
            with client:
                client.settimeout(60)
                client.recv(1)
                begun = time.monotonic()
                came = 0
                while (passed := time.monotonic() - begun) < for_s:
                    came += len(client.recv(1 << 20))
                return came * 8.0, passed
        finally:
            end.set()
            source.join()


def _pour(sender: Station, address: str, number: int, end: threading.Event) -> None:
    data = bytes(1 << 16)
    with sender.socket(socket.AF_INET, socket.SOCK_STREAM) as client:
        client.settimeout(60)
        try:
            client.connect((address, number))
            while not end.is_set():
                client.send(data)
        except OSError:
            return


def ports_up(northbound: Northbound) -> frozenset[str]:
    """Return the names of the ports that a host has bound. OVN also reports the ports of a host that has died."""
    with northbound.session.reading() as replica:
        ports = replica.tables.get("Logical_Switch_Port", {}).values()
        return frozenset(str(port["name"]) for port in ports if port.get("up"))
