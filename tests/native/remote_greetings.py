"""Valid and invalid greetings of programs and brokers to a host of workers, as bytes."""

from __future__ import annotations

import array
import fcntl
import os
import socket
import struct
from pathlib import Path

MAGIC = 0x48534142414C4143
VERSION, LOCAL, HANDOVER, RING = 1, 1, 2, 1
GREETED, MALFORMED, OTHER_VERSION, FORBIDDEN, FULL, FAILED = range(6)
F_ADD_SEALS, F_SEAL_SHRINK = 1033, 2


def greeting(
    kind: int = LOCAL,
    flags: int = 0,
    *,
    session: bytes = bytes(16),
    key: bytes = bytes(32),
    version: int = VERSION,
    magic: int = MAGIC,
) -> bytes:
    return struct.pack("<QHHI16s32s", magic, version, kind, flags, session, key)


def ring(bytes_: int = 4096 + (2 << 20), *, sealed: bool = True) -> int:
    """Return the descriptor of shared memory for a ring; the caller closes it."""
    memory = os.memfd_create("ring", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(memory, bytes_)
    if sealed:
        fcntl.fcntl(memory, F_ADD_SEALS, F_SEAL_SHRINK)
    return memory


def connect(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(60)
    connection.connect(str(path))
    return connection


def send(connection: socket.socket, message: bytes, *descriptors: int) -> None:
    passed = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    connection.sendmsg([message], passed)


def answer(connection: socket.socket) -> int | None:
    """Return the byte of a refusal after which the connection ended; None if it ended without one."""
    told = b""
    try:
        while more := connection.recv(16):
            told += more
    except ConnectionResetError:
        return None
    assert len(told) <= 1, told
    return told[0] if told else None
