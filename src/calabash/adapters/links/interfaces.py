"""Interfaces of network namespaces: veth pairs, addresses, routes, and reachable neighbours on a link."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from calabash.adapters.links import namespaces
from calabash.adapters.links.offloads import switch_off

if TYPE_CHECKING:
    from pyroute2 import IPRoute

_NODAD = 0x02  # IFA_F_NODAD: the address is unique, so duplicate address detection is not needed
_DISCARD = 9  # port of a datagram that makes the kernel resolve the address
_ANSWERED = 0x02 | 0x08 | 0x10  # NUD_REACHABLE, NUD_DELAY, NUD_PROBE


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkEnd:
    """End of a veth pair: its namespace (None: this process's) and its name there, at most 15 characters."""

    namespace: Path | None
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSettings:
    """Settings of an interface.

    Args:
        mac: "" keeps the current address.
        addresses: like ``10.0.0.5/24``.
        routes: destination and next hop: ``("0.0.0.0/0", "10.0.0.1")``.
    """

    mac: str = ""
    mtu_bytes: int = 1400
    addresses: Sequence[str] = ()
    routes: Sequence[tuple[str, str]] = ()


def join(one: LinkEnd, other: LinkEnd) -> None:
    """Create a veth pair; an existing pair is kept. Raises OSError."""
    if present(one) and present(other):
        return
    remove(one)
    remove(other)

    def make() -> None:
        peer: dict[str, object] = {"ifname": other.name}
        with _netlink() as netlink:
            if other.namespace is None:
                netlink.link("add", ifname=one.name, kind="veth", peer=peer)
                return
            with other.namespace.open("rb") as there:
                netlink.link("add", ifname=one.name, kind="veth", peer=peer | {"net_ns_fd": there.fileno()})

    namespaces.inside(one.namespace, make)


def present(end: LinkEnd) -> bool:
    """Return True if the interface exists; False also without the namespace."""
    try:
        return namespaces.inside(end.namespace, lambda: end.name in {name for _, name in socket.if_nameindex()})
    except OSError:
        return False


def remove(end: LinkEnd) -> None:
    """Delete a veth pair by one of its ends; does nothing if the interface does not exist."""

    def take() -> None:
        with _netlink() as netlink:
            for index in netlink.link_lookup(ifname=end.name):
                netlink.link("del", index=index)

    if present(end):
        try:
            namespaces.inside(end.namespace, take)
        except OSError as error:
            if error.errno not in (errno.ENODEV, errno.ENOENT):
                raise


def set_up(end: LinkEnd, settings: LinkSettings | None = None) -> None:
    """Apply the settings to an interface and bring it and ``lo`` up; may be repeated. Raises OSError.

    Args:
        settings: settings of the interface; None only brings it up, which is all that the end at a switch needs.
    """

    def change() -> None:
        switch_off(end.name)
        with _netlink() as netlink:
            (index,) = netlink.link_lookup(ifname=end.name)
            if settings is None:
                netlink.link("set", index=index, state="up")
                return
            _let_everybody_ping()
            _ignore_routers(end.name)
            wanted = {"mtu": settings.mtu_bytes} | ({"address": settings.mac} if settings.mac else {})
            netlink.link("set", index=index, **wanted)
            for up in (*netlink.link_lookup(ifname="lo"), index):
                netlink.link("set", index=up, state="up")
            for address in settings.addresses:
                host, _, length = address.partition("/")
                more = {"flags": _NODAD} if ":" in host else {}
                netlink.addr("replace", index=index, address=host, prefixlen=int(length), **more)
            for prefix, gateway in settings.routes:
                netlink.route("replace", dst=prefix, gateway=gateway, oif=index, family=_family(gateway))

    namespaces.inside(end.namespace, change)


def resolve_neighbour(namespace: Path, address: str) -> None:
    """Make the kernel resolve a neighbour's address; ``neighbour_answers`` returns the result. Raises OSError."""

    def send() -> None:
        with socket.socket(_family(address), socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as datagram:
            datagram.setblocking(False)
            datagram.sendto(b"", (address, _DISCARD))

    namespaces.inside(namespace, send)


def neighbour_answers(namespace: Path, address: str) -> bool:
    """Return True if the neighbour has answered recently. Raises OSError."""

    def has_answered() -> bool:
        with _netlink() as netlink:
            return any(
                neighbour.get("dst") == address and neighbour["state"] & _ANSWERED
                for neighbour in netlink.get_neighbours(family=_family(address))
            )

    return namespaces.inside(namespace, has_answered)


def _let_everybody_ping() -> None:
    """Allow unprivileged ping in this thread's namespace, if the kernel supports it."""
    with contextlib.suppress(OSError):
        Path("/proc/sys/net/ipv4/ping_group_range").write_text("0 2147483647")


def _ignore_routers(interface: str) -> None:
    """Make an interface ignore router advertisements and redirects."""
    for setting in ("accept_ra", "autoconf", "accept_redirects"):
        with contextlib.suppress(FileNotFoundError):  # a kernel without IPv6
            Path("/proc/sys/net/ipv6/conf", interface, setting).write_text("0")


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


@contextlib.contextmanager
def _netlink() -> Iterator[IPRoute]:
    """Context with netlink in this thread's namespace; its errors become OSError."""
    from pyroute2 import IPRoute  # noqa: PLC0415 - an extra, and slow to import
    from pyroute2.netlink.exceptions import NetlinkError  # noqa: PLC0415

    try:
        with IPRoute() as netlink:
            yield netlink
    except NetlinkError as error:
        raise OSError(error.code, os.strerror(error.code)) from error
