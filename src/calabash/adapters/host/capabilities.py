"""Drop Linux capabilities of this process and its children irrevocably, also for root."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Collection

_PR_SET_DUMPABLE = 4
_PR_SET_NO_NEW_PRIVS, _PR_CAPBSET_READ, _PR_CAPBSET_DROP = 38, 23, 24
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
_VERSION_3 = 0x20080522
_NUMBERS_MAX = 64

# Capabilities that affect only the tenant's own files, processes and packets, which the switch of its port filters.
OF_A_TENANT_ROOT = frozenset({0, 1, 3, 4, 5, 6, 7, 8, 10, 13, 31})
"""CHOWN, DAC_OVERRIDE, FOWNER, FSETID, KILL, SETGID, SETUID, SETPCAP, NET_BIND_SERVICE, NET_RAW, SETFCAP."""

_libc = ctypes.CDLL(None, use_errno=True)


def close_memory() -> None:
    """Protect this process's memory from other processes of its user until it executes a program. Raises OSError."""
    _checked(_libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0))


def bound(kept: Collection[int]) -> None:
    """Prevent this process and its children from gaining capabilities other than those in ``kept``. Raises OSError.

    Capabilities that this process has now are not removed.
    """
    _checked(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    with contextlib.suppress(OSError):  # a kernel without them
        _checked(_libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0))
    for number in range(_NUMBERS_MAX):
        if number not in kept and _libc.prctl(_PR_CAPBSET_READ, number, 0, 0, 0) == 1:
            _checked(_libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0))


def keep_only(kept: Collection[int]) -> None:
    """Drop all capabilities of this process except ``kept``. Raises OSError."""
    header = (ctypes.c_uint32 * 2)(_VERSION_3, 0)
    data = (ctypes.c_uint32 * 6)()
    _checked(_libc.capget(header, data))
    for word in range(2):
        mask = sum(1 << (number - 32 * word) for number in kept if 32 * word <= number < 32 * word + 32)
        for field in range(3):
            data[3 * word + field] &= mask
        data[3 * word + 2] = 0  # inheritable
    _checked(_libc.capset(header, data))


def _checked(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
