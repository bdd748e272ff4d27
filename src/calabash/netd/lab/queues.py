"""Receive queues of Open vSwitch's userspace ports: long ones, for each socket by itself.

A port that is a network device is read through an AF_PACKET socket. Its queue has the machine's default length, too short for
a burst of TCP: packets are lost and sent again by the hundred thousand. The default of the machine is everybody's and stays
as it is; instead the sockets of the running daemon are duplicated into this process (``pidfd_getfd``) and each is given more.
"""

from __future__ import annotations

import ctypes
import os
import socket
from pathlib import Path

QUEUE_BYTES = 8 * 2**20
_SYS_PIDFD_GETFD = 438
_SO_RCVBUFFORCE = 33


def lengthen(pid: int, queue_bytes: int = QUEUE_BYTES) -> int:
    """Gives every AF_PACKET socket of a process at least that queue; how many it changed. 0 where the kernel refuses."""
    try:
        process = os.pidfd_open(pid)
    except OSError:
        return 0
    try:
        return sum(_lengthened(process, number, queue_bytes) for number in _sockets(pid))
    finally:
        os.close(process)


def _sockets(pid: int) -> list[int]:
    found = []
    try:
        for path in Path(f"/proc/{pid}/fd").iterdir():
            try:
                target = os.readlink(path)
            except OSError:
                continue
            if target.startswith("socket:"):
                found.append(int(path.name))
    except OSError:
        return []
    return found


def _lengthened(process: int, number: int, queue_bytes: int) -> bool:
    descriptor = ctypes.CDLL(None, use_errno=True).syscall(_SYS_PIDFD_GETFD, process, number, 0)
    if descriptor < 0:
        return False
    with socket.socket(fileno=descriptor) as copy:
        if copy.family != socket.AF_PACKET or copy.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) >= queue_bytes:
            return False
        try:
            copy.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, queue_bytes)
        except OSError:
            return False
    return True
