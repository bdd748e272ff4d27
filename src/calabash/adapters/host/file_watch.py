"""Watch files for modifications with inotify, without a thread: the owner polls for changes."""

from __future__ import annotations

import ctypes
import os
import struct
from pathlib import Path

_MODIFIED, _IGNORED, _OVERFLOWED = 0x2, 0x8000, 0x4000  # <linux/inotify.h>
_HEAD = struct.Struct("iIII")  # of an event: watch, mask, cookie, length of the name
_READ_BYTES = 65536

_libc = ctypes.CDLL(None, use_errno=True)


class FileWatch:
    """Watched files. Not safe for threads; every call returns at once.

    Raises:
        OSError: the kernel does not support watches, or this user has too many.
    """

    def __init__(self) -> None:
        self._descriptor = _checked(_libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        self._paths: dict[int, Path] = {}

    def add(self, path: Path) -> None:
        """Watch a file from now on. Raises OSError."""
        watch = _checked(_libc.inotify_add_watch(self._descriptor, os.fsencode(path), ctypes.c_uint32(_MODIFIED)))
        self._paths[watch] = path

    def changed(self) -> set[Path] | None:
        """Return the files that were modified or removed since the last call; None if events were lost."""
        found: set[Path] = set()
        complete = True
        while data := self._read():
            at = 0
            while at < len(data):
                watch, mask, _, length = _HEAD.unpack_from(data, at)
                at += _HEAD.size + length
                if mask & _OVERFLOWED:
                    complete = False
                elif watch in self._paths:
                    found.add(self._paths[watch])
                    if mask & _IGNORED:  # the file is gone, and the watch with it
                        del self._paths[watch]
        return found if complete else None

    def _read(self) -> bytes:
        try:
            return os.read(self._descriptor, _READ_BYTES)
        except BlockingIOError:
            return b""

    def close(self) -> None:
        """Stop watching."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            self.close()


def _checked(answer: int) -> int:
    if answer < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return answer
