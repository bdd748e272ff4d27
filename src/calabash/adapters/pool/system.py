"""Checks of the system pool's socket: the pool that root runs for all users, at a fixed path.

A client that uses it by default must not be led to a pool of another local user, which would see its requests and
decide what its programs load. Two checks prevent that: only root can change any component of the socket's path
(:func:`require_of_root`), and the kernel reports root as the listening process (``PoolClient(owner=0)``).

Imported by ``calabash run``: imports nothing slow.
"""

from __future__ import annotations

import errno
import stat

from calabash.adapters.host.path_walk import LINKS_MAX, walk
from calabash.model.errors import CalabashError, Reason

SYSTEM_HOME = "/var/lib/calabash"


def require_of_root(path: str) -> None:
    """Raise NOT_PERMITTED if another user than root can decide what the absolute ``path`` leads to.

    Each directory and symbolic link on the way must belong to root, and no directory may be writable by its group or by
    others: the sticky bit does not help, as others could create missing components. The last component, a socket that
    all users may write to, must belong to root. A missing component ends the check: its directory is root's, so that
    only root can create it.
    """
    try:
        for at, found in walk(path):
            if found.st_uid != 0:
                raise _refused(path, f"{at} belongs to user id {found.st_uid}, not to root")
            if stat.S_ISDIR(found.st_mode) and found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                mode = stat.S_IMODE(found.st_mode)
                raise _refused(path, f"{at} has mode {mode:04o}, so that other users than root can write to it")
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _refused(path, f"it has more than {LINKS_MAX} symbolic links") from None
        why = (error.strerror or str(error)).lower()
        raise _refused(path, f"{error.filename} cannot be examined ({why})") from None


def _refused(path: str, why: str) -> CalabashError:
    return CalabashError(
        f"the system pool's socket {path} is not used: {why}",
        reason=Reason.NOT_PERMITTED,
        hint="have root correct the owner and the mode; CALABASH_HOME names another pool",
    )
