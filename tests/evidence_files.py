"""Bounded copies of the files of a failed test: logs, journals and settings of the daemons that the test used.

Other users may own the files, and other processes may replace them during the copy. A copy therefore reads regular files
only, relative to the descriptor of their directory, and follows no link and waits for no writer.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

FILE_BYTES_MAX = 4 << 20
TEST_BYTES_MAX = 40 << 20
ENTRIES_MAX = 20_000
_BLOCK = 1 << 20
_LISTED_MAX = 500
_NAMES = re.compile(
    r"\.(log(\.\d+)?|db|db-wal|sqlite3?|toml|jsonl?|txt|ya?ml|conf|conflist|state|out|err|said)$", re.IGNORECASE
)
_SECRETS = re.compile(r"key|token|secret|password|credential|kubeconfig|\.pem$|\.p12$", re.IGNORECASE)
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def may_be_secret(name: str) -> bool:
    """Return True if the name of a file, directory or variable suggests that it holds a secret."""
    return _SECRETS.search(name) is not None


def size_of(directory: Path) -> int:
    """Return the number of bytes in the copies below a directory, at most ``FILE_BYTES_MAX`` for each."""
    files = [path for path in directory.rglob("*") if path.is_file() and not path.is_symlink()]
    return sum(min(path.lstat().st_size, FILE_BYTES_MAX) for path in files)


class FileCopier:
    """Copies files to a directory until ``bytes_left`` is used up. ``listing`` has a line for each file seen.

    Of a file of more than ``FILE_BYTES_MAX`` bytes the end is copied; a larger sparse file, such as the state of a simulated
    node, is copied with its holes if its data are within the limit. A file whose name suggests a secret is listed and not
    copied. A file that was copied under another path is not copied again.
    """

    def __init__(self, target: Path, bytes_left: int = TEST_BYTES_MAX) -> None:
        self._target = target
        self._bytes_left = bytes_left
        self._entries_left = ENTRIES_MAX
        self._seen: set[tuple[int, int]] = set()
        self.listing: list[str] = []

    def copy(self, label: str, source: Path) -> None:
        """Copy a file, or the files below a directory whose suffix is that of a log, a journal or settings.

        Args:
            label: the subdirectory of the target, usually the name of a fixture.
            source: the file or directory; nothing is copied if it does not exist.
        """
        place = Path(label) / source.name
        try:
            mode = source.lstat().st_mode
            if stat.S_ISDIR(mode):
                self._copy_directory(place, source)
            elif stat.S_ISREG(mode):
                directory = os.open(source.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                try:
                    self._copy_file(place, source.name, directory)
                finally:
                    os.close(directory)
        except OSError as error:
            self._list(place, f"not readable: {error.strerror}")

    def _copy_directory(self, place: Path, source: Path) -> None:
        for path, directories, names, descriptor in os.fwalk(source, follow_symlinks=False):
            directories.sort()
            inside = place / os.path.relpath(path, source)
            self._entries_left -= len(names) + len(directories)
            if self._entries_left < 0:
                self._list(inside, f"not searched: more than {ENTRIES_MAX} entries")
                return
            for name in sorted(names):
                if _NAMES.search(name) or may_be_secret(name):
                    try:
                        self._copy_file(inside / name, name, descriptor)
                    except OSError as error:
                        self._list(inside / name, f"not readable: {error.strerror}")
            for name in [name for name in directories if may_be_secret(name)]:
                self._list(inside / name, "directory, not searched: its name suggests a secret")
                directories.remove(name)

    def _copy_file(self, place: Path, name: str, directory: int) -> None:
        found = os.stat(name, dir_fd=directory, follow_symlinks=False)
        if not stat.S_ISREG(found.st_mode) or (found.st_dev, found.st_ino) in self._seen:
            return
        if may_be_secret(name):
            self._list(place, f"{found.st_size} bytes, not copied: its name suggests a secret")
            return
        descriptor = os.open(name, _OPEN, dir_fd=directory)
        with open(descriptor, "rb", buffering=0):
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):  # replaced between the two calls
                return
            self._seen.add((found.st_dev, found.st_ino))
            extents = _data(descriptor, found.st_size)
            wanted = sum(length for _, length in extents)
            begin = 0
            if wanted > FILE_BYTES_MAX:
                begin, wanted = found.st_size - FILE_BYTES_MAX, FILE_BYTES_MAX
                extents = [(begin, wanted)]
            if wanted > self._bytes_left:
                self._list(place, f"{found.st_size} bytes, not copied: the limit of {TEST_BYTES_MAX} bytes is reached")
                return
            target = self._target / place
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("wb") as copy:
                for offset, length in extents:
                    copy.seek(offset - begin)
                    for block in _blocks(descriptor, offset, length):
                        self._bytes_left -= copy.write(block)
                if begin + wanted < found.st_size:
                    copy.truncate(found.st_size)  # a hole at the end
        partly = f", the last {wanted} copied" if begin else ""
        self._list(place, f"{found.st_size} bytes{partly}")

    def _list(self, place: Path, text: str) -> None:
        if len(self.listing) < _LISTED_MAX:
            shown = str(place)
            self.listing.append(f"{shown if shown.isprintable() else ascii(shown)}: {text}")
        elif len(self.listing) == _LISTED_MAX:
            self.listing.append("... more files are not listed")


def _data(descriptor: int, size: int) -> list[tuple[int, int]]:
    """Return offset and length of the data of a file without its holes, up to the first that exceeds ``FILE_BYTES_MAX``."""
    if size <= FILE_BYTES_MAX:
        return [(0, size)]
    found: list[tuple[int, int]] = []
    end = total = 0
    with suppress(OSError):  # ENXIO: a hole is at the end
        while end < size and total <= FILE_BYTES_MAX:
            offset = os.lseek(descriptor, end, os.SEEK_DATA)
            end = os.lseek(descriptor, offset, os.SEEK_HOLE)
            found.append((offset, end - offset))
            total += end - offset
    return found


def _blocks(descriptor: int, offset: int, size: int) -> Iterator[bytes]:
    """Read at most ``size`` bytes from a file, which may shrink or grow meanwhile."""
    while size > 0 and (block := os.pread(descriptor, min(size, _BLOCK), offset)):
        offset, size = offset + len(block), size - len(block)
        yield block
