"""Bounded copies of the files of a failed test: logs, journals and settings of the daemons that the test used.

Other users may own the files, and other processes may replace them during the copy. A copy therefore reads regular files
only, relative to the descriptor of their directory, and follows no link and waits for no writer.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
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
    """Return the number of bytes in all regular files below a directory."""
    return sum(path.lstat().st_size for path in directory.rglob("*") if path.is_file() and not path.is_symlink())


class FileCopier:
    """Copies files to a directory until ``bytes_left`` is used up. ``listing`` has a line for each file seen.

    A file of more than ``FILE_BYTES_MAX`` bytes is copied from its end. A file whose name suggests a secret is listed and
    not copied. A file that was copied under another path is not copied again.
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
        with open(descriptor, "rb", buffering=0) as file:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):  # replaced between the two calls
                return
            self._seen.add((found.st_dev, found.st_ino))
            wanted = min(found.st_size, FILE_BYTES_MAX)
            if wanted > self._bytes_left:
                self._list(place, f"{found.st_size} bytes, not copied: the limit of {TEST_BYTES_MAX} bytes is reached")
                return
            file.seek(found.st_size - wanted)
            target = self._target / place
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("wb") as copy:
                for block in _blocks(descriptor, wanted):
                    self._bytes_left -= copy.write(block)
        partly = f", the last {wanted} copied" if wanted < found.st_size else ""
        self._list(place, f"{found.st_size} bytes{partly}")

    def _list(self, place: Path, text: str) -> None:
        if len(self.listing) < _LISTED_MAX:
            shown = str(place)
            self.listing.append(f"{shown if shown.isprintable() else ascii(shown)}: {text}")
        elif len(self.listing) == _LISTED_MAX:
            self.listing.append("... more files are not listed")


def _blocks(descriptor: int, size: int) -> Iterator[bytes]:
    """Read at most ``size`` bytes from a file, which may shrink or grow meanwhile."""
    while size > 0 and (block := os.read(descriptor, min(size, _BLOCK))):
        size -= len(block)
        yield block
