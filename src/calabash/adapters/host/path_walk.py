"""Components of a path in the order in which the kernel walks them, each with its status.

Imports nothing slow, because the client imports it before it connects to the system pool.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator

LINKS_MAX = 40  # as many as the kernel follows


def walk(path: str) -> Iterator[tuple[str, os.stat_result]]:
    """Yield each component of an absolute path, with its path and status: ``/``, all directories, and the last one.

    A symbolic link is yielded, and then the components of its target, so that the links of a target are also yielded.

    Raises:
        OSError: a component cannot be examined, with its path as ``filename``; ELOOP for more than ``LINKS_MAX`` links.
    """
    at, links, left = "/", 0, _parts(path)
    while True:
        found = os.lstat(at)
        yield at, found
        if stat.S_ISLNK(found.st_mode):
            links += 1
            if links > LINKS_MAX:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), at)
            target = os.readlink(at)
            left += _parts(target)
            at = "/" if target.startswith("/") else os.path.dirname(at)
        if not left:
            return
        part = left.pop()
        at = os.path.dirname(at) if part == ".." else os.path.join(at, part)


def _parts(path: str) -> list[str]:
    """Return the components of a path, the first one last."""
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]
