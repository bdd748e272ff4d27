"""Listening TCP sockets of a network namespace, queried with sock_diag(7).

The kernel looks a listening socket up as for an arriving packet, in a few microseconds. Reading ``/proc/net/tcp`` takes
milliseconds, because the kernel walks its whole table of sockets.
"""

from __future__ import annotations

import socket
import struct
from pathlib import Path

from calabash.adapters.links import namespaces
from calabash.model.addresses import Address

_NETLINK_SOCK_DIAG = 4
_BY_FAMILY = 20  # SOCK_DIAG_BY_FAMILY
_REQUEST = 0x1
_ANY_STATE = 0xFFFFFFFF
_HEADER = struct.Struct("=IHHII")
_QUESTION = struct.Struct("=BBBBI")
_ANSWER_BYTES = 8192
_WAIT_S = 5.0


class NamespaceSockets:
    """TCP sockets of one network namespace, which is kept while this object is open. Not safe for threads.

    Raises OSError if the namespace does not exist.

    Args:
        namespace: path of the namespace.
    """

    def __init__(self, namespace: Path) -> None:
        def open_there() -> socket.socket:
            return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG)

        self._netlink = namespaces.inside(namespace, open_there)
        self._netlink.settimeout(_WAIT_S)

    def listens(self, address: Address, number: int) -> bool:
        """Return True if a socket listens at that address and port. Raises OSError."""
        family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
        body = _QUESTION.pack(family, socket.IPPROTO_TCP, 0, 0, _ANY_STATE) + _identity(address, number)
        self._netlink.send(_HEADER.pack(_HEADER.size + len(body), _BY_FAMILY, _REQUEST, 0, 0) + body)
        _, kind, *_ = _HEADER.unpack_from(self._netlink.recv(_ANSWER_BYTES))
        return bool(kind == _BY_FAMILY)

    def close(self) -> None:
        self._netlink.close()


def _identity(address: Address, number: int) -> bytes:
    """Return an ``inet_diag_sockid``: own address and port, no peer, any interface, no cookie."""
    own, nobody = address.packed.ljust(16, b"\0"), bytes(16)
    return struct.pack("!HH", number, 0) + own + nobody + bytes(4) + b"\xff" * 8
