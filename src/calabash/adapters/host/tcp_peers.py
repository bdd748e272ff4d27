"""Local user at the other end of a TCP connection within this machine, from the kernel's socket diagnosis."""

from __future__ import annotations

import socket
import struct

_SOCK_DIAG_BY_FAMILY, _NETLINK_SOCK_DIAG, _REQUEST = 20, 4, 1
_HEADER = struct.Struct("=IHHII")
_UID_AT = _HEADER.size + 4 + 48 + 12  # behind state, addresses, expiry and both queues
_WAIT_S = 1.0


def local_peer(connection: socket.socket, address: str) -> str:
    """Return the text to which a connection is attributed: ``user UID`` for a local user, else ``address``.

    Args:
        address: address of the other end.
    """
    uid = local_uid(connection)
    return address if uid is None else f"user {uid}"


def local_uid(connection: socket.socket) -> int | None:
    """Return the uid of the local user who owns the other end of a connection.

    Returns None if the other end is on another machine, is closed, or cannot be found.
    """
    if connection.family not in {socket.AF_INET, socket.AF_INET6}:
        return None
    try:
        here, there = connection.getsockname(), connection.getpeername()
        if here[0] != there[0] and not there[0].startswith(("127.", "::1")):
            return None
        wanted = struct.pack("!HH", there[1], here[1]) + _packed(connection, there[0]) + _packed(connection, here[0])
        body = struct.pack("=BBBBI", connection.family, socket.IPPROTO_TCP, 0, 0, 0xFFFFFFFF)
        body += wanted + struct.pack("=I", 0) + b"\xff" * 8
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as kernel:
            kernel.settimeout(_WAIT_S)
            kernel.sendto(_HEADER.pack(_HEADER.size + len(body), _SOCK_DIAG_BY_FAMILY, _REQUEST, 1, 0) + body, (0, 0))
            answer = kernel.recv(8192)
    except OSError:
        return None
    if _HEADER.unpack_from(answer)[1] != _SOCK_DIAG_BY_FAMILY or len(answer) < _UID_AT + 8:
        return None
    uid, inode = struct.unpack_from("=II", answer, _UID_AT)
    return int(uid) if inode else None  # a socket without an inode has been closed: its owner is not reported


def _packed(connection: socket.socket, address: str) -> bytes:
    return socket.inet_pton(connection.family, address.partition("%")[0]).ljust(16, b"\0")
