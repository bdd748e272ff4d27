"""The system pool: the pool that root runs for all users of the machine, at a fixed path.

A client that is sent there by default must not be led to a pool of another local user, which would see its requests and
decide what its programs load. Two checks exclude that: root alone can change every component of the socket's path
(:func:`require_of_root`), and the kernel names root as the process that listens (``PoolClient(owner=0)``).

Imported on the way of ``calabash run``: nothing that is slow to import is needed here.
"""

from __future__ import annotations

import errno
import stat

from calabash.adapters.host.path_walk import LINKS_MAX, walk
from calabash.model.errors import CalabashError, Reason

SYSTEM_HOME = "/var/lib/calabash"


def require_of_root(path: str) -> None:
    """Raise NOT_PERMITTED if another user than root can decide what the absolute ``path`` leads to.

    Each directory and each symbolic link on the way must belong to root, and no directory may be writable by its group or
    by others: the sticky bit does not help, as it lets others create what is not there yet. The last component, a socket
    that all users may write to, must belong to root. A component that does not exist ends the check: the one before it is
    root's, so that nobody else can create it.
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
