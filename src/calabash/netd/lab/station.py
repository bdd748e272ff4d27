"""A program's place in a lab's network without a program: a namespace with one network card, for tests and for trying."""

from __future__ import annotations

import hashlib
import ipaddress
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from calabash.netd.lab import namespaces
from calabash.netd.lab.host import LabHost

CARD = "eth0"
MTU_BYTES = 1400


@dataclass(frozen=True, slots=True, kw_only=True)
class Station:
    """Sockets are opened inside it from outside (``socket``), programs run inside it (``run``).

    Args:
        name: in its lab.
        card: its device.
        addresses: with the length of their range: ``10.0.1.11/24``.
        host: where its port is; None of the world.
        port: the logical port, which is the ``iface-id`` of its port in Open vSwitch.
    """

    name: str
    namespace: str
    card: str
    mac: str
    addresses: tuple[str, ...]
    host: LabHost | None = None
    port: str = ""

    def socket(self, family: int, kind: int, protocol: int = 0) -> socket.socket:
        """A socket that lives inside, for the caller to close."""
        return namespaces.open_socket(self.namespace, family, kind, protocol)

    def run(self, *argv: str, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
        """A program inside, with what it said."""
        return namespaces.run(self.namespace, *argv, timeout_s=timeout_s)

    def ip(self, *commands: Sequence[object]) -> None:
        """Changes addresses and routes inside, by commands of ``ip``."""
        namespaces.ip(commands, name=self.namespace)

    def address(self, version: int = 4) -> str:
        """Its first address of that version, without a length; "" when it has none."""
        found = (ipaddress.ip_interface(text) for text in self.addresses)
        return next((str(interface.ip) for interface in found if interface.version == version), "")

    def remove(self) -> None:
        """Takes its port out of the switch, and the namespace away."""
        if self.host is not None:
            self.host.vsctl("--if-exists", "del-port", "br-int", device_of(self.port))
        if namespaces.exists(self.namespace):
            namespaces.ip([("netns", "del", self.namespace)])


def device_of(port: str) -> str:
    """The host's end of a port's wire: 15 bytes at most, the same for the same port."""
    return "v" + hashlib.sha256(port.encode()).hexdigest()[:12]


def attach(
    host: LabHost,
    *,
    namespace: str,
    port: str,
    mac: str,
    addresses: Sequence[str],
    gateways: Sequence[str],
    mtu_bytes: int = MTU_BYTES,
) -> Station:
    """Makes a namespace whose one card is the logical port; packets pass when OVN has bound it."""
    device = device_of(port)
    namespaces.ip(
        [
            ("netns", "add", namespace),
            ("link", "add", CARD, "netns", namespace, "type", "veth", "peer", "name", device, "netns", host.namespace),
        ]
    )
    namespaces.quiet_default(namespace, version6=any(ipaddress.ip_interface(text).version == 6 for text in addresses))
    namespaces.without_offloads(namespace, (CARD,))
    namespaces.without_offloads(host.namespace, (device,))
    namespaces.ip([("link", "set", device, "up")], name=host.namespace)
    namespaces.ip(
        [
            ("link", "set", "lo", "up"),
            ("link", "set", CARD, "address", mac, "mtu", mtu_bytes, "up"),
            *(("address", "add", text, "dev", CARD, "nodad") for text in addresses),
            *(("route", "add", "default", "via", text) for text in gateways),
        ],
        name=namespace,
    )
    host.vsctl(
        *("--may-exist", "add-port", "br-int", device),
        *("--", "set", "Interface", device, f'external_ids:iface-id="{port}"'),
    )
    host.lengthen_queues()
    return Station(name=port, namespace=namespace, card=CARD, mac=mac, addresses=tuple(addresses), host=host, port=port)


def beside(
    namespace: str, *, name: str, cables: str, addresses: Sequence[str], gateways: Sequence[str] = ()
) -> tuple[Station, str]:
    """A namespace with a card on a wire to the namespace ``cables``, and what the wire is called there."""
    device = device_of(name)
    namespaces.ip(
        [
            ("netns", "add", namespace),
            ("link", "add", CARD, "netns", namespace, "type", "veth", "peer", "name", device, "netns", cables),
        ]
    )
    namespaces.quiet_default(namespace, version6=any(":" in text for text in addresses))
    namespaces.without_offloads(namespace, (CARD,))
    namespaces.without_offloads(cables, (device,))
    namespaces.ip([("link", "set", device, "up")], name=cables)
    namespaces.ip(
        [
            *(("link", "set", each, "up") for each in ("lo", CARD)),
            *(("address", "add", text, "dev", CARD, "nodad") for text in addresses),
            *(("route", "add", "default", "via", text) for text in gateways),
        ],
        name=namespace,
    )
    namespaces.set_kernel(namespace, {"net/ipv4/ip_forward": "1", "net/ipv6/conf/all/forwarding": "1"})
    return Station(name=name, namespace=namespace, card=CARD, mac="", addresses=tuple(addresses)), device
