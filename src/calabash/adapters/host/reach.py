"""Find the first component of a file's path whose mode keeps other users from the file."""

from __future__ import annotations

import errno
import stat
from dataclasses import dataclass
from pathlib import Path

from calabash.adapters.host.path_walk import walk


@dataclass(frozen=True, slots=True, kw_only=True)
class Barrier:
    """Component of a path whose mode keeps out users other than its owner and the members of its group.

    Args:
        path: path up to this component.
        mode: its permission bits.
        needs: missing permission in the form of ``chmod``, such as ``o+x``.
    """

    path: Path
    mode: int
    needs: str

    def __str__(self) -> str:
        return f"{self.path} has mode {self.mode:04o}"

    @property
    def command(self) -> str:
        """The command that removes the barrier."""
        return f"chmod {self.needs} {self.path}"


def barrier_to_others(path: Path, *, execute: bool = False) -> Barrier | None:
    """Return the first component that keeps other users from reading the file; None if the modes let them.

    Access control lists, mount options and security modules are not examined.

    Args:
        path: a file, which others must be able to read, or a directory, which others must be able to search.
        execute: True if others must also be able to execute the file.
    """
    try:
        for at, found in walk(str(path)):
            barrier = _barrier(Path(at), found.st_mode, execute=execute)
            if barrier is not None:
                return barrier
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
    return None


def _barrier(path: Path, mode: int, *, execute: bool) -> Barrier | None:
    if stat.S_ISLNK(mode):
        return None
    if stat.S_ISDIR(mode):
        wanted, needs = stat.S_IXOTH, "o+x"
    elif execute:
        wanted, needs = stat.S_IROTH | stat.S_IXOTH, "o+rx"
    else:
        wanted, needs = stat.S_IROTH, "o+r"
    return None if mode & wanted == wanted else Barrier(path=path, mode=stat.S_IMODE(mode), needs=needs)
