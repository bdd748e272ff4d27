"""Files in which the end recorder writes when the member processes of allocations ended.

Theory of operation. Each end recorder has one file in the directory ``ends`` of the pool's home, readable and writable
by the pool's user only. The first line has the boot ID of the machine and the time of the last complete poll; it is
overwritten in place by one write of fixed length. Each further line is a change of one allocation: the name of its
slot, the time when it was last seen with a live member process, and the time when it was found without one (0: it has
one). All times are of the monotonic clock in nanoseconds. An incomplete line is ignored when the file is read. Lines
that could not be written because the disk was full are written at the next poll.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

DIRECTORY = "ends"
_HEAD = "{boot:<40} {looked_ns:020}\n"
_HEAD_BYTES = 62
_BYTES_MAX = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class LastSeen:
    """Times at which an allocation was last seen with a live member process and first found without one.

    Both are of the monotonic clock. ``alive_ns`` is 0 if no poll before ``gone_ns`` saw it alive; ``gone_ns`` is 0 if
    it was alive at the last poll.
    """

    alive_ns: int
    gone_ns: int = 0


def served_name(slot: str) -> str:
    """Return the name under which the end of a brokered allocation is recorded. It differs from that of the slot.

    See ``end_recorder.GroupWitness``.
    """
    return f"served:{slot}"


class EndFile:
    """The file of one end recorder. Used by one thread."""

    def __init__(self, home: Path, boot: str) -> None:
        """Create the file. Raises OSError if that fails."""
        directory = home / DIRECTORY
        with suppress(FileExistsError):
            directory.mkdir(mode=0o700)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        self._boot = boot or "-"
        self._descriptor = os.open(directory / secrets.token_hex(8), flags, 0o600)
        self._lines = bytearray()  # not written yet
        self._end = _HEAD_BYTES

    def add(self, name: str, seen: LastSeen) -> None:
        """Buffer a change of an allocation; ``flush`` writes it."""
        self._lines += f"{name} {seen.alive_ns} {seen.gone_ns}\n".encode()

    def flush(self, at_ns: int) -> bool:
        """Write the buffered changes, then the time of this poll.

        The time is not written while changes are buffered. Returns False if the file was removed: another recorder has
        taken over.
        """
        with suppress(OSError):
            if self._lines:
                written = os.pwrite(self._descriptor, self._lines, self._end)
                del self._lines[:written]
                self._end += written
            if not self._lines:  # otherwise an end that is not written yet would read as alive
                os.pwrite(self._descriptor, _HEAD.format(boot=self._boot, looked_ns=at_ns).encode(), 0)
        return os.fstat(self._descriptor).st_nlink > 0

    def close(self) -> None:
        os.close(self._descriptor)


def read_ends(home: Path, boot: str) -> dict[str, LastSeen]:
    """Return the entries of all files of this boot by slot name; of two entries for a slot, the newer one."""
    found: dict[str, LastSeen] = {}
    for path in _files(home):
        for name, seen in _read(path, boot).items():
            before = found.get(name)
            if before is None or _latest(seen) > _latest(before):
                found[name] = seen
    return found


def replace_ends(home: Path, boot: str, ends: Mapping[str, LastSeen]) -> None:
    """Replace the files of all end recorders by one with ``ends``. These recorders then end. Raises OSError."""
    old = _files(home)
    (home / DIRECTORY).mkdir(mode=0o700, exist_ok=True)  # created early: a killed pool adds no directory
    if ends:
        file = EndFile(home, boot)
        for name, seen in ends.items():
            file.add(name, seen)
        file.flush(time.monotonic_ns())
        file.close()
    for path in old:
        with suppress(FileNotFoundError):
            path.unlink()


def fingerprint(home: Path) -> tuple[tuple[str, int, int], ...]:
    """Return a value that changes when one of the files is written, added or removed."""
    found = []
    for path in _files(home):
        with suppress(OSError):
            status = path.stat()
            found.append((path.name, status.st_size, status.st_mtime_ns))
    return tuple(found)


def _files(home: Path) -> list[Path]:
    try:
        return sorted((home / DIRECTORY).iterdir())
    except OSError:
        return []


def _latest(seen: LastSeen) -> int:
    return max(seen.alive_ns, seen.gone_ns)


def _read(path: Path, boot: str) -> dict[str, LastSeen]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            head, *lines = file.read(_BYTES_MAX).decode("ascii").split("\n")
        of_boot, looked = head.split()
        looked_ns = int(looked)
    except (OSError, ValueError):
        return {}
    if of_boot != (boot or "-"):
        return {}
    found: dict[str, LastSeen] = {}
    for line in lines[:-1]:  # the last one is empty, or not complete
        with suppress(ValueError):
            name, alive, gone = line.split()
            found[name] = LastSeen(alive_ns=int(alive), gone_ns=int(gone))
    return {
        name: seen if seen.gone_ns else LastSeen(alive_ns=max(seen.alive_ns, looked_ns)) for name, seen in found.items()
    }
