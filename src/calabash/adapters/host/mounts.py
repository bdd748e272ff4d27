"""List mounts of this process, mount and unmount file systems, and enter a mount namespace."""

from __future__ import annotations

import ctypes
import os
import re
from dataclasses import dataclass
from pathlib import Path

_FLAGS = {"ro": 0x1, "nosuid": 0x2, "nodev": 0x4, "noexec": 0x8}
_MNT_DETACH = 0x2
_UMOUNT_NOFOLLOW = 0x8
_CLONE_NEWNS = 0x00020000
_ESCAPE = re.compile(rb"\\([0-7]{3})")
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mounted:
    """Line of mountinfo: mount point, root inside the file system, file system type, and device (``major:minor``)."""

    directory: Path
    root: str
    kind: str
    writable: bool
    device: str = ""


def mounts(text: bytes | None = None) -> list[Mounted]:
    """Return all mounts in order of mounting, from mountinfo ``text``; None reads that of this process."""
    if text is None:
        text = Path("/proc/self/mountinfo").read_bytes()
    found = []
    for line in text.splitlines():
        fields = line.split(b" ")
        # <id> <parent> <device> <root> <mount point> <options> [optional fields] - <kind> <source> <options>
        try:
            dash = fields.index(b"-", 6)
            kind = fields[dash + 1].decode()
        except (ValueError, IndexError):
            continue
        options = {*fields[5].split(b","), *fields[-1].split(b",")}
        root, directory = os.fsdecode(_plain(fields[3])), Path(os.fsdecode(_plain(fields[4])))
        found.append(
            Mounted(directory=directory, root=root, kind=kind, writable=b"ro" not in options, device=fields[2].decode())
        )
    return found


def _plain(field: bytes) -> bytes:
    return _ESCAPE.sub(lambda match: bytes([int(match[1], 8)]), field)


def mount(source: str, directory: Path, kind: str, options: str) -> None:
    """Mount a file system of type ``kind``. Raises OSError.

    Args:
        options: words with commas between them. Words that are not mount flags are passed to the file system.
    """
    words = [word for word in options.split(",") if word]
    flags = sum(_FLAGS.get(word, 0) for word in words)
    data = ",".join(word for word in words if word not in _FLAGS)
    arguments = (source.encode(), os.fsencode(directory), kind.encode(), ctypes.c_ulong(flags), data.encode())
    if _libc.mount(*arguments) != 0:
        raise _failure(directory)


def unmount(directory: Path) -> None:
    """Unmount a directory at once, also if files of it are open. Raises OSError if nothing is mounted there."""
    if _libc.umount2(os.fsencode(directory), _MNT_DETACH | _UMOUNT_NOFOLLOW) != 0:
        raise _failure(directory)


def _failure(directory: Path) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number), str(directory))


def enter_mount_namespace(pid: int) -> None:
    """Enter the mount namespace of process ``pid``; only in a process with one thread. Raises OSError."""
    descriptor = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if _libc.setns(descriptor, _CLONE_NEWNS) != 0:
            raise _failure(Path(f"/proc/{pid}/ns/mnt"))
    finally:
        os.close(descriptor)
