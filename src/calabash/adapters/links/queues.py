"""Longer receive queues for the sockets of Open vSwitch's userspace ports.

A port that is a network device is read through an AF_PACKET socket. Its queue has the machine's default length, which
is too short for a burst of TCP: hundreds of thousands of packets are lost and sent again. The machine's default is not
changed; instead the sockets of the running daemon are duplicated into this process (``pidfd_getfd``) and lengthened one
by one.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
from collections.abc import Iterator
from pathlib import Path

QUEUE_BYTES = 8 * 2**20
_SYS_PIDFD_GETFD = 438
_SO_RCVBUFFORCE = 33


def lengthen(pid: int, queue_bytes: int = QUEUE_BYTES) -> int:
    """Give each AF_PACKET socket of a process at least ``queue_bytes`` of receive queue; return how many were changed.

    Returns 0 if the kernel refuses.
    """
    return sum(_lengthened(each, queue_bytes) for each in _copies(pid))


def lengthen_at(remote: str) -> int:
    """Lengthen the queues of a switch as ``lengthen`` does; return the number of changed sockets.

    Returns 0 if the switch does not run or its pid file cannot be read.

    Args:
        remote: address of the switch's database, ``unix:/…/db.sock``. The pid file is in the same directory.
    """
    if not remote.startswith("unix:"):
        return 0
    try:
        pid = int(Path(remote.removeprefix("unix:")).with_name("ovs-vswitchd.pid").read_text())
    except (OSError, ValueError):
        return 0
    return lengthen(pid)


def _copies(pid: int) -> Iterator[socket.socket]:
    """Yield a duplicate of each AF_PACKET socket of the process, closed before the next."""
    try:
        process = os.pidfd_open(pid)
    except OSError:
        return
    try:
        for number in _sockets(pid):
            descriptor = ctypes.CDLL(None, use_errno=True).syscall(_SYS_PIDFD_GETFD, process, number, 0)
            if descriptor < 0:
                continue
            with socket.socket(fileno=descriptor) as copy:
                if copy.family == socket.AF_PACKET:
                    yield copy
    finally:
        os.close(process)


def _sockets(pid: int) -> list[int]:
    found = []
    with contextlib.suppress(OSError):
        for path in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if os.readlink(path).startswith("socket:"):
                    found.append(int(path.name))
    return found


def _lengthened(copy: socket.socket, queue_bytes: int) -> bool:
    if copy.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) >= queue_bytes:
        return False
    with contextlib.suppress(OSError):
        copy.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, queue_bytes)
        return True
    return False
