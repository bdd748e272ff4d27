"""Find what keeps other users of the machine from a file: the first component of its path whose mode shuts them out."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

_LINKS_MAX = 40  # as many as the kernel follows


@dataclass(frozen=True, slots=True, kw_only=True)
class Barrier:
    """A component of a path that users who neither own it nor are in its group cannot pass; ``needs`` as chmod has it."""

    path: Path
    mode: int
    needs: str

    def __str__(self) -> str:
        return f"{self.path} has mode {self.mode:04o}"

    @property
    def command(self) -> str:
        """The command that mends it."""
        return f"chmod {self.needs} {self.path}"


def barrier_to_others(path: Path, *, execute: bool = False) -> Barrier | None:
    """Return the first component that keeps other users from reading the file; None if the modes let them.

    Symbolic links are followed one at a time, as each may lead through directories of its own. What access control lists,
    mount options or security modules add is not seen.

    Args:
        path: a file or a directory; a directory must be searchable only.
        execute: the file must be executable, too.
    """
    at, links, left = "/", 0, _parts(str(path))
    while True:
        found = os.lstat(at)
        if stat.S_ISLNK(found.st_mode):
            links += 1
            if links > _LINKS_MAX:
                return None
            target = os.readlink(at)
            left += _parts(target)
            at = "/" if target.startswith("/") else os.path.dirname(at)
        elif stat.S_ISDIR(found.st_mode):
            if not found.st_mode & stat.S_IXOTH:
                return Barrier(path=Path(at), mode=stat.S_IMODE(found.st_mode), needs="o+x")
        else:
            wanted = stat.S_IROTH | (stat.S_IXOTH if execute else 0)
            if found.st_mode & wanted != wanted:
                needs = "o+rx" if execute else "o+r"
                return Barrier(path=Path(at), mode=stat.S_IMODE(found.st_mode), needs=needs)
        if not left:
            return None
        part = left.pop()
        at = os.path.dirname(at) if part == ".." else os.path.join(at, part)


def _parts(path: str) -> list[str]:
    """The components of a path, the first one last."""
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]
