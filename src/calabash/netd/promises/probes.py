"""A port of the platform's inside a VPC, and the packets that it sends and gets, by sockets opened in its namespace."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path

from calabash.agent.net.protocol import PortFacts
from calabash.model.addresses import Address
from calabash.seams.links import namespaces

Socket = socket.socket
TRIED_S = 5.0
EVERY_S = 0.2
_NUMBER = 7  # of the UDP port that probes listen at
_NOBODY = str(IPv4Address(0))
_DHCP_SERVER, _DHCP_CLIENT, _ETH_P_IP = 67, 68, 0x0800
_IP_MTU_DISCOVER, _IP_PMTUDISC_PROBE = 10, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """A port that works, on ``host``; ``namespace`` is its own."""

    facts: PortFacts
    host: str
    namespace: Path

    @property
    def address(self) -> Address:
        """Its first one."""
        return self.facts.addresses[0][0]

    def socket(self, kind: int, protocol: int = 0, *, family: int = 0) -> Socket:
        """One of its namespace, for the caller to close."""
        wanted = family or (socket.AF_INET6 if self.address.version == 6 else socket.AF_INET)
        return namespaces.inside(self.namespace, lambda: socket.socket(wanted, kind, protocol))

    def reaches(self, other: Probe, *, size_bytes: int = 64) -> bool:
        """Whether a datagram of that size, IP's header included, gets to another probe in one piece."""
        head = 48 if self.address.version == 6 else 28
        mark = secrets.token_bytes(8).ljust(size_bytes - head, b".")

        def send() -> None:
            with self.socket(socket.SOCK_DGRAM) as sender:
                if self.address.version == 4:
                    sender.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _IP_PMTUDISC_PROBE)
                sender.sendto(mark, (str(other.address), _NUMBER))

        with other.listening() as listener:
            return _heard(listener, mark, send)

    def keeps_out(self, other: Probe, *, mac: str = "", address: str = "") -> bool | None:
        """Whether nothing of ours that pretends to be somebody else gets to another probe of the subnet, although what does not
        gets there; None when that does not either."""
        false, true = secrets.token_bytes(8), secrets.token_bytes(8)
        with other.listening() as listener:
            frame = _frame(
                mac or self.facts.mac, other.facts.mac, address or str(self.address), str(other.address), false
            )
            honest = _frame(self.facts.mac, other.facts.mac, str(self.address), str(other.address), true)
            heard: list[bytes] = []

            def send() -> None:
                with self.socket(socket.SOCK_RAW, family=socket.AF_PACKET) as sender:
                    sender.bind(("eth0", 0))
                    sender.send(frame)
                    sender.send(honest)

            arrived = _heard(listener, true, send, heard=heard)
            return false not in heard if arrived else None

    def pings(self, address: Address) -> bool:
        """Whether that address answers."""
        with self.socket(socket.SOCK_DGRAM, socket.IPPROTO_ICMP) as asking:
            asking.settimeout(EVERY_S)
            deadline_s = time.monotonic() + TRIED_S
            while time.monotonic() < deadline_s:
                with contextlib.suppress(OSError):
                    asking.sendto(struct.pack("!BBHHH", 8, 0, 0, 0, 1) + b"calabash", (str(address), 0))
                    if asking.recvfrom(1500)[1][0] == str(address):
                        return True
            return False

    def leased(self) -> str:
        """The address that DHCP offers to the port's MAC; "" when it offers none."""
        mac = bytes.fromhex(self.facts.mac.replace(":", ""))
        mark = secrets.token_bytes(4)
        body = (
            struct.pack("!BBBB", 1, 1, 6, 0) + mark + struct.pack("!HH", 0, 0x8000) + bytes(16) + mac.ljust(16, b"\0")
        )
        body += bytes(192) + b"\x63\x82\x53\x63" + b"\x35\x01\x01" + b"\xff"
        frame = _frame(
            self.facts.mac,
            "ff:ff:ff:ff:ff:ff",
            _NOBODY,
            "255.255.255.255",
            body,
            numbers=(_DHCP_CLIENT, _DHCP_SERVER),
        )
        with self.socket(socket.SOCK_RAW, socket.htons(_ETH_P_IP), family=socket.AF_PACKET) as card:
            card.bind(("eth0", _ETH_P_IP))
            card.settimeout(EVERY_S)
            deadline_s = time.monotonic() + TRIED_S
            while time.monotonic() < deadline_s:
                card.send(frame)
                with contextlib.suppress(TimeoutError):
                    while got := card.recv(2000):
                        offer = got[42:]
                        if offer[:1] == b"\x02" and offer[4:8] == mark:
                            return socket.inet_ntoa(offer[16:20])
        return ""

    def floods(self, other: Probe, *, for_s: float) -> tuple[int, int, float]:
        """Sends datagrams to another probe as fast as this machine can: bits that were sent, that came, and seconds."""
        payload, sent, came = secrets.token_bytes(1200), 0, 0
        bits = 8 * (len(payload) + 28)
        with other.listening() as listener, self.socket(socket.SOCK_DGRAM) as sender:
            listener.setblocking(False)
            sender.setblocking(False)
            sender.connect((str(other.address), _NUMBER))
            begun_s = time.monotonic()
            while (lasted_s := time.monotonic() - begun_s) < for_s:
                with contextlib.suppress(OSError):
                    sender.send(payload)
                    sent += bits
                with contextlib.suppress(BlockingIOError):
                    while listener.recv(2000):
                        came += bits
        return sent, came, lasted_s

    def connects(self, address: Address, number: int) -> bool:
        """Whether a TCP server answers there."""
        with self.socket(socket.SOCK_STREAM) as asking:
            asking.settimeout(TRIED_S)
            return asking.connect_ex((str(address), number)) == 0

    def resolves(self, name: str, server: Address) -> str:
        """The address that a name server gives a name; "" when it gives none."""
        question = struct.pack("!HHHHHH", os.getpid() & 0xFFFF, 0x100, 1, 0, 0, 0)
        question += b"".join(bytes([len(part)]) + part.encode() for part in name.split("."))
        question += b"\0" + struct.pack("!HH", 1, 1)
        with self.socket(socket.SOCK_DGRAM) as asking:
            asking.settimeout(TRIED_S / 5)
            for _ in range(5):
                with contextlib.suppress(OSError):
                    asking.sendto(question, (str(server), 53))
                    answer = asking.recv(1500)
                    if answer[6:8] != b"\0\0":
                        return socket.inet_ntoa(answer[-4:])
        return ""

    @contextlib.contextmanager
    def listening(self) -> Iterator[Socket]:
        """A socket that hears what is sent to it."""
        with self.socket(socket.SOCK_DGRAM) as listener:
            listener.bind(("", _NUMBER))
            listener.settimeout(EVERY_S)
            yield listener


def _heard(listener: socket.socket, mark: bytes, send: Callable[[], None], *, heard: list[bytes] | None = None) -> bool:
    """Whether the mark arrives, sent again and again; ``heard``: all that arrived."""
    deadline_s = time.monotonic() + TRIED_S
    while time.monotonic() < deadline_s:
        with contextlib.suppress(OSError):
            send()
        with contextlib.suppress(TimeoutError):
            while True:
                got = listener.recv(65_536)
                if heard is not None:
                    heard.append(got)
                if got == mark:
                    return True
    return False


def _frame(
    mac: str, to_mac: str, source: str, target: str, mark: bytes, *, numbers: tuple[int, int] = (_NUMBER, _NUMBER)
) -> bytes:
    """A frame around a UDP datagram over IPv4, without its optional checksum."""
    datagram = struct.pack("!HHHH", *numbers, 8 + len(mark), 0) + mark
    ends = socket.inet_aton(source) + socket.inet_aton(target)
    head = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(datagram), 1, 0, 64, socket.IPPROTO_UDP, 0) + ends
    head = head[:10] + struct.pack("!H", _checksum(head)) + head[12:]
    macs = bytes.fromhex(to_mac.replace(":", "")) + bytes.fromhex(mac.replace(":", ""))
    return (macs + b"\x08\x00" + head + datagram).ljust(60, b"\0")


def _checksum(data: bytes) -> int:
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
