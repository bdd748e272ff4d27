"""Probes: ports of the platform in a VPC that send and receive packets by sockets in their namespaces."""

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

from calabash.adapters.links import namespaces
from calabash.model.addresses import Address
from calabash.node.ports.protocol import PortFacts

Socket = socket.socket
TRY_S = 5.0
EVERY_S = 0.2
_NUMBER = 7  # UDP port of probes
_UNSPECIFIED = str(IPv4Address(0))
_DHCP_SERVER, _DHCP_CLIENT, _ETH_P_IP = 67, 68, 0x0800
_IP_MTU_DISCOVER, _IP_PMTUDISC_PROBE = 10, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """A port whose packets this process sends and receives.

    Args:
        facts: name, addresses and MAC of the port.
        host: name of the host to which the port is attached, for messages.
        namespace: network namespace that has the port's interface.
    """

    facts: PortFacts
    host: str
    namespace: Path

    @property
    def address(self) -> Address:
        """First address of the port."""
        return self.facts.addresses[0][0]

    def socket(self, kind: int, protocol: int = 0, *, family: int = 0) -> Socket:
        """Open a socket in the namespace. The caller closes it."""
        wanted = family or (socket.AF_INET6 if self.address.version == 6 else socket.AF_INET)
        return namespaces.inside(self.namespace, lambda: socket.socket(wanted, kind, protocol))

    def reaches(self, other: Probe, *, size_bytes: int = 64) -> bool:
        """Return True if a datagram of that size, including the IP header, reaches another probe unfragmented."""
        head = 48 if self.address.version == 6 else 28
        mark = secrets.token_bytes(8).ljust(size_bytes - head, b".")

        def send() -> None:
            with self.socket(socket.SOCK_DGRAM) as sender:
                if self.address.version == 4:
                    sender.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _IP_PMTUDISC_PROBE)
                sender.sendto(mark, (str(other.address), _NUMBER))

        with other.listening() as listener:
            return _arrives(listener, mark, send)

    def is_forgery_dropped(self, other: Probe, *, mac: str = "", address: str = "") -> bool | None:
        """Return True if a frame with a forged source does not reach another probe of the subnet, False if it does.

        A frame with the correct source is sent after each forged one. If no frame with the correct source arrives,
        nothing can be said, and the result is None.

        Args:
            mac: forged source MAC; "": the port's own.
            address: forged source address; "": the port's own.
        """
        forged_mark, honest_mark = secrets.token_bytes(8), secrets.token_bytes(8)
        with other.listening() as listener:
            frame = _frame(
                mac or self.facts.mac, other.facts.mac, address or str(self.address), str(other.address), forged_mark
            )
            honest = _frame(self.facts.mac, other.facts.mac, str(self.address), str(other.address), honest_mark)
            received: list[bytes] = []

            def send() -> None:
                with self.socket(socket.SOCK_RAW, family=socket.AF_PACKET) as sender:
                    sender.bind(("eth0", 0))
                    sender.send(frame)
                    sender.send(honest)

            arrived = _arrives(listener, honest_mark, send, received=received)
            return forged_mark not in received if arrived else None

    def pings(self, address: Address) -> bool:
        """Return True if the address responds to ping."""
        with self.socket(socket.SOCK_DGRAM, socket.IPPROTO_ICMP) as asking:
            asking.settimeout(EVERY_S)
            deadline_s = time.monotonic() + TRY_S
            while time.monotonic() < deadline_s:
                with contextlib.suppress(OSError):
                    asking.sendto(struct.pack("!BBHHH", 8, 0, 0, 0, 1) + b"calabash", (str(address), 0))
                    if asking.recvfrom(1500)[1][0] == str(address):
                        return True
            return False

    def dhcp_offer(self) -> str:
        """Return the address that DHCP offers to the MAC of the port, or ""."""
        mac = bytes.fromhex(self.facts.mac.replace(":", ""))
        mark = secrets.token_bytes(4)
        body = (
            struct.pack("!BBBB", 1, 1, 6, 0) + mark + struct.pack("!HH", 0, 0x8000) + bytes(16) + mac.ljust(16, b"\0")
        )
        body += bytes(192) + b"\x63\x82\x53\x63" + b"\x35\x01\x01" + b"\xff"
        frame = _frame(
            self.facts.mac,
            "ff:ff:ff:ff:ff:ff",
            _UNSPECIFIED,
            "255.255.255.255",
            body,
            numbers=(_DHCP_CLIENT, _DHCP_SERVER),
        )
        with self.socket(socket.SOCK_RAW, socket.htons(_ETH_P_IP), family=socket.AF_PACKET) as card:
            card.bind(("eth0", _ETH_P_IP))
            card.settimeout(EVERY_S)
            deadline_s = time.monotonic() + TRY_S
            while time.monotonic() < deadline_s:
                card.send(frame)
                with contextlib.suppress(TimeoutError):
                    while got := card.recv(2000):
                        offer = got[42:]
                        if offer[:1] == b"\x02" and offer[4:8] == mark:
                            return socket.inet_ntoa(offer[16:20])
        return ""

    def flood(self, other: Probe, *, for_s: float) -> tuple[int, int, float]:
        """Send datagrams to another probe at full speed for ``for_s`` seconds; return bits sent, bits received, and seconds."""
        payload, sent, received_bits = secrets.token_bytes(1200), 0, 0
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
                        received_bits += bits
        return sent, received_bits, lasted_s

    def connects(self, address: Address, number: int) -> bool:
        """Return True if a TCP server at this address and port number accepts a connection."""
        with self.socket(socket.SOCK_STREAM) as asking:
            asking.settimeout(TRY_S)
            return asking.connect_ex((str(address), number)) == 0

    def resolves(self, name: str, server: Address) -> str:
        """Return the IPv4 address that a DNS server answers for a name; "" if it has none or does not respond."""
        question = struct.pack("!HHHHHH", os.getpid() & 0xFFFF, 0x100, 1, 0, 0, 0)
        question += b"".join(bytes([len(part)]) + part.encode() for part in name.split("."))
        question += b"\0" + struct.pack("!HH", 1, 1)
        with self.socket(socket.SOCK_DGRAM) as asking:
            asking.settimeout(TRY_S / 5)
            for _ in range(5):
                with contextlib.suppress(OSError):
                    asking.sendto(question, (str(server), 53))
                    answer = asking.recv(1500)
                    if answer[6:8] != b"\0\0":
                        return socket.inet_ntoa(answer[-4:])
        return ""

    @contextlib.contextmanager
    def listening(self) -> Iterator[Socket]:
        """Open a socket that receives datagrams of other probes."""
        with self.socket(socket.SOCK_DGRAM) as listener:
            listener.bind(("", _NUMBER))
            listener.settimeout(EVERY_S)
            yield listener


def _arrives(
    listener: socket.socket, mark: bytes, send: Callable[[], None], *, received: list[bytes] | None = None
) -> bool:
    """Send a datagram repeatedly until it arrives; return False if it does not arrive within TRY_S seconds.

    Args:
        mark: content of the expected datagram.
        send: sends the datagram once.
        received: list to which the contents of all received datagrams are added.
    """
    deadline_s = time.monotonic() + TRY_S
    while time.monotonic() < deadline_s:
        with contextlib.suppress(OSError):
            send()
        with contextlib.suppress(TimeoutError):
            while True:
                got = listener.recv(65_536)
                if received is not None:
                    received.append(got)
                if got == mark:
                    return True
    return False


def _frame(
    mac: str, to_mac: str, source: str, target: str, mark: bytes, *, numbers: tuple[int, int] = (_NUMBER, _NUMBER)
) -> bytes:
    """Return an Ethernet frame with a UDP datagram over IPv4, without the optional checksum.

    Args:
        mac, to_mac: source and destination MAC.
        source, target: source and destination address.
        mark: content of the datagram.
        numbers: source and destination port number.
    """
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
