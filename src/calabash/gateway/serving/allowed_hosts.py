"""Check the Host header of requests, to prevent DNS rebinding.

In this attack, a page of another site makes the DNS name of its own site point to the gateway's address, so that the
browser allows its script to read the gateway's replies. The Host header then has the name of that site. The gateway
accepts the names of its settings and ``localhost``. It also accepts IP addresses, because no name service can change
their meaning.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable


def host_of(header: str) -> str:
    """Return the host of a Host header in lower case, without port and brackets."""
    text = header.strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.rpartition(":")[0] if text.count(":") == 1 else text


def is_address(host: str) -> bool:
    """Return True if the host is an IP address."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def without_name(header: str, address: str) -> str:
    """Return a Host header with a loopback address instead of ``localhost``; "" if the header names another host.

    Args:
        header: the Host header.
        address: local address of the connection; 127.0.0.1 is used if it is not a loopback address, as behind a port
            forwarding.
    """
    if host_of(header) != "localhost":
        return ""
    port = header.strip().rpartition(":")[2] if ":" in header else ""
    shown = "[::1]" if address == "::1" else address if address.startswith("127.") else "127.0.0.1"
    return f"{shown}:{port}" if port else shown


class Hosts:
    """Host names under which one gateway may be reached."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset({"localhost", *(name.lower() for name in names)})

    def accepts(self, header: str) -> bool:
        """Return True if a request with this Host header is accepted."""
        host = host_of(header)
        return host in self._names or is_address(host)
