"""The system pool: the pool that root runs for all users of the machine, at a fixed path.

A client that is sent there by default must not be led to a pool of another local user, which would see its requests and
decide what its programs load. Two checks exclude that: root alone can change every component of the socket's path
(:func:`require_of_root`), and the kernel names root as the process that listens (``PoolClient(owner=0)``).

Imported on the way of ``calabash run``: nothing that is slow to import is needed here.
"""

from __future__ import annotations

import os
import stat

from calabash.model.errors import CalabashError, Reason

SYSTEM_HOME = "/var/lib/calabash"
_LINKS_MAX = 40  # as many as the kernel follows


def require_of_root(path: str) -> None:
    """Raise NOT_PERMITTED if another user than root can decide what the absolute ``path`` leads to.

    Each directory and each symbolic link on the way must belong to root, and no directory may be writable by its group or
    by others: the sticky bit does not help, as it lets others create what is not there yet. The last component, a socket
    that all users may write to, must belong to root. A component that does not exist ends the check: the one before it is
    root's, so that nobody else can create it.
    """
    at, links = "/", 0
    left = _parts(path)
    while True:
        try:
            found = os.lstat(at)
        except FileNotFoundError:
            return
        except OSError as error:
            raise _refused(path, f"{at} cannot be examined ({(error.strerror or str(error)).lower()})") from None
        if found.st_uid != 0:
            raise _refused(path, f"{at} belongs to user id {found.st_uid}, not to root")
        if stat.S_ISDIR(found.st_mode) and found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            mode = stat.S_IMODE(found.st_mode)
            raise _refused(path, f"{at} has mode {mode:04o}, so that other users than root can write to it")
        if stat.S_ISLNK(found.st_mode):
            links += 1
            if links > _LINKS_MAX:
                raise _refused(path, f"it has more than {_LINKS_MAX} symbolic links")
            target = os.readlink(at)
            left = [*left, *_parts(target)]
            at = "/" if target.startswith("/") else os.path.dirname(at)
        if not left:
            return
        part = left.pop()
        at = os.path.dirname(at) if part == ".." else os.path.join(at, part)


def _parts(path: str) -> list[str]:
    """The components of a path, the first one last."""
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]


def _refused(path: str, why: str) -> CalabashError:
    return CalabashError(
        f"the system pool's socket {path} is not used: {why}",
        reason=Reason.NOT_PERMITTED,
        hint="have root correct the owner and the mode; CALABASH_HOME names another pool",
    )
