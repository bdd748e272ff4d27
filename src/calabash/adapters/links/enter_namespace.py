"""Move a single-threaded process into a network namespace and its own mount namespace, irrevocably."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

_CLONE_NEWNS, _CLONE_NEWNET = 0x00020000, 0x40000000
_MS_BIND, _MS_REC, _MS_SLAVE = 0x1000, 0x4000, 1 << 19
RESOLVER = Path("/etc/resolv.conf")
_libc = ctypes.CDLL(None, use_errno=True)


def enter(namespace: Path, resolver_file: Path | None) -> None:
    """Enter a network namespace, and a new mount namespace in which ``resolver_file`` replaces ``/etc/resolv.conf``.

    Nothing is mounted if ``resolver_file`` is None or the machine has no ``/etc/resolv.conf``.

    Later mounts elsewhere are visible here, but mounts made here are not visible elsewhere. Raises OSError.
    """
    descriptor = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _checked(_libc.setns(descriptor, _CLONE_NEWNET), f"setns {namespace}")
    finally:
        os.close(descriptor)
    if resolver_file is None or not RESOLVER.exists():
        return
    _checked(_libc.unshare(_CLONE_NEWNS), "unshare mounts")
    _checked(_libc.mount(b"none", b"/", None, ctypes.c_ulong(_MS_REC | _MS_SLAVE), None), "mount /")
    source, target = os.fsencode(resolver_file), os.fsencode(RESOLVER.resolve())
    _checked(_libc.mount(source, target, None, ctypes.c_ulong(_MS_BIND), None), f"bind {RESOLVER}")


def _checked(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
