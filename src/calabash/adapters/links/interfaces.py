"""Interfaces of namespaces: pairs of them, addresses, routes, and who answers beside them."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from calabash.adapters.links import namespaces
from calabash.adapters.links.offloads import switch_off

Answer = TypeVar("Answer")

_NODAD = 0x02  # IFA_F_NODAD: nobody else can have the address, so nobody is asked before it is used
_DISCARD = 9  # the port that a datagram is sent to so that the kernel asks who has the address
_ANSWERED = 0x02 | 0x08 | 0x10  # NUD_REACHABLE, NUD_DELAY, NUD_PROBE


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkEnd:
    """One end of a pair: the namespace that it is in (None: this process's) and its name there, at most 15 characters."""

    namespace: Path | None
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSettings:
    """How an end is set up.

    Args:
        mac: "" leaves it the one it has.
        addresses: ``10.0.0.5/24``.
        routes: a range, and the next hop to it: ``("0.0.0.0/0", "10.0.0.1")``.
    """

    mac: str = ""
    mtu_bytes: int = 1400
    addresses: Sequence[str] = ()
    routes: Sequence[tuple[str, str]] = ()


def join(one: LinkEnd, other: LinkEnd) -> None:
    """A pair: what goes in at one end comes out at the other. One that is there is kept. Raises OSError."""
    if present(one) and present(other):
        return
    remove(one)
    remove(other)

    def make() -> None:
        peer: dict[str, object] = {"ifname": other.name}
        with IPRoute() as netlink:
            if other.namespace is None:
                netlink.link("add", ifname=one.name, kind="veth", peer=peer)
                return
            with other.namespace.open("rb") as there:
                netlink.link("add", ifname=one.name, kind="veth", peer=peer | {"net_ns_fd": there.fileno()})

    _told(one.namespace, make)


def present(end: LinkEnd) -> bool:
    """Whether there is such an interface; False also without the namespace."""
    try:
        return namespaces.inside(end.namespace, lambda: end.name in {name for _, name in socket.if_nameindex()})
    except OSError:
        return False


def remove(end: LinkEnd) -> None:
    """Take an interface away, and with it its other end; nothing where there is none."""

    def take() -> None:
        with IPRoute() as netlink:
            for index in netlink.link_lookup(ifname=end.name):
                netlink.link("del", index=index)

    if present(end):
        try:
            _told(end.namespace, take)
        except OSError as error:
            if error.errno not in (errno.ENODEV, errno.ENOENT):
                raise


def set_up(end: LinkEnd, settings: LinkSettings | None = None) -> None:
    """Make an end what its settings say, and let it pass packets; again changes nothing. None: it only passes packets, as the
    end of a switch does. ``lo`` of a namespace comes up as well. Raises OSError."""

    def change() -> None:
        switch_off(end.name)
        with IPRoute() as netlink:
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

    _told(end.namespace, change)


def ask_for(namespace: Path, address: str) -> None:
    """Let the kernel ask who has a neighbour's address; ``answers`` tells what came of it. Raises OSError."""

    def send() -> None:
        with socket.socket(_family(address), socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as datagram:
            datagram.setblocking(False)
            datagram.sendto(b"", (address, _DISCARD))

    namespaces.inside(namespace, send)


def answers(namespace: Path, address: str) -> bool:
    """Whether that neighbour has answered lately. Raises OSError."""

    def look() -> bool:
        with IPRoute() as netlink:
            return any(
                neighbour.get("dst") == address and neighbour["state"] & _ANSWERED
                for neighbour in netlink.get_neighbours(family=_family(address))
            )

    return _told(namespace, look)


def _let_everybody_ping() -> None:
    """In this thread's namespace, without any right; a kernel without that goes without."""
    with contextlib.suppress(OSError):
        Path("/proc/sys/net/ipv4/ping_group_range").write_text("0 2147483647")


def _ignore_routers(interface: str) -> None:
    """Have an interface keep its addresses and routes whatever router advertisements and redirects it receives."""
    for setting in ("accept_ra", "autoconf", "accept_redirects"):
        with contextlib.suppress(FileNotFoundError):  # a kernel without IPv6
            Path("/proc/sys/net/ipv6/conf", interface, setting).write_text("0")


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _told(namespace: Path | None, work: Callable[[], Answer]) -> Answer:
    """As ``namespaces.inside``; what netlink refuses is an OSError too."""
    try:
        return namespaces.inside(namespace, work)
    except NetlinkError as error:
        raise OSError(error.code, os.strerror(error.code)) from error
