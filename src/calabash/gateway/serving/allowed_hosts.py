"""By which names a browser may reach the gateway: a page of another site must not reach it by a name of its own.

That is DNS rebinding. An address as such is always right, since no name service can change what it means; so is ``localhost``.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable


def host_of(header: str) -> str:
    """The host of a Host header, without its port and brackets, in small letters."""
    text = header.strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.rpartition(":")[0] if text.count(":") == 1 else text


def is_address(host: str) -> bool:
    """Whether it is an IP address."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def without_name(header: str, address: str) -> str:
    """Return a Host header with a loopback address instead of ``localhost``, empty if it names another host.

    Args:
        address: of this end of the connection; 127.0.0.1 if it is no loopback address, as behind a port forwarding.
    """
    if host_of(header) != "localhost":
        return ""
    port = header.strip().rpartition(":")[2] if ":" in header else ""
    shown = "[::1]" if address == "::1" else address if address.startswith("127.") else "127.0.0.1"
    return f"{shown}:{port}" if port else shown


class Hosts:
    """The names of one gateway."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset({"localhost", *(name.lower() for name in names)})

    def known(self, header: str) -> bool:
        """Whether a request with this Host header is for us."""
        host = host_of(header)
        return host in self._names or is_address(host)
