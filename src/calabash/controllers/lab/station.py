"""Station: a namespace with one network interface in a lab, used in tests and trials instead of a user's program."""

from __future__ import annotations

import hashlib
import ipaddress
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from calabash.controllers.lab import namespaces
from calabash.controllers.lab.host import LabHost

CARD = "eth0"
MTU_BYTES = 1400


@dataclass(frozen=True, slots=True, kw_only=True)
class Station:
    """A namespace with one interface. ``socket`` opens sockets in it, ``run`` runs programs in it.

    Args:
        name: name of the station in its lab.
        namespace: network namespace of the station.
        card: name of its interface.
        mac: MAC of the interface; "" if it is not known.
        addresses: addresses with prefix lengths, such as ``10.0.1.11/24``.
        host: host to whose switch the interface is attached; None for a station on the provider network.
        port: logical port of OVN (``iface-id`` in Open vSwitch); "" for none.
    """

    name: str
    namespace: str
    card: str
    mac: str
    addresses: tuple[str, ...]
    host: LabHost | None = None
    port: str = ""

    def socket(self, family: int, kind: int, protocol: int = 0) -> socket.socket:
        """Open a socket in the namespace. The caller closes it."""
        return namespaces.open_socket(self.namespace, family, kind, protocol)

    def run(self, *argv: str, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
        """Run a program in the namespace; return its result."""
        return namespaces.run(self.namespace, *argv, timeout_s=timeout_s)

    def ip(self, *commands: Sequence[object]) -> None:
        """Change addresses and routes by commands of ``ip``."""
        namespaces.ip(commands, name=self.namespace)

    def address(self, version: int = 4) -> str:
        """Return the first address of that IP version without its prefix length, or ""."""
        found = (ipaddress.ip_interface(text) for text in self.addresses)
        return next((str(interface.ip) for interface in found if interface.version == version), "")

    def remove(self) -> None:
        """Remove the port from the switch, and the namespace."""
        if self.host is not None:
            self.host.vsctl("--if-exists", "del-port", "br-int", device_of(self.port))
        if namespaces.exists(self.namespace):
            namespaces.ip([("netns", "del", self.namespace)])


def device_of(port: str) -> str:
    """Return the name of the network device on the host that belongs to a logical port.

    The name is a digest of the port's name, because names of network devices have at most 15 bytes.
    """
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
    """Create a namespace whose interface is the logical port. Packets pass after OVN has bound the port.

    Args:
        host: host to whose switch the interface is attached.
        namespace: name of the new namespace.
        port: name of the logical port.
        mac: MAC of the port.
        addresses: addresses with prefix lengths.
        gateways: next hops of default routes.
        mtu_bytes: MTU of the interface.
    """
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


def attach_to_namespace(
    namespace: str, *, name: str, cables: str, addresses: Sequence[str], gateways: Sequence[str] = ()
) -> tuple[Station, str]:
    """Create a station whose interface is linked to a device in the namespace ``cables``.

    Returns the station and the name of this device, which the caller connects.

    Args:
        namespace: name of the station's new namespace.
        name: name of the station, from which the name of the device is derived.
        cables: namespace of the device.
        addresses: addresses with prefix lengths.
        gateways: next hops of default routes.
    """
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
