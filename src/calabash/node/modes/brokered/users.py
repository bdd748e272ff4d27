"""Assignment of unused user IDs to workers, so that a worker cannot affect processes of other users.

All pools of root on a machine take users from the same range by default. A pool locks a file per user ID in a
directory of root and passes the open file to the worker host. The kernel releases the lock when the last process with that
file has exited, so a crash leaves no stale lock.
"""

from __future__ import annotations

import errno
import fcntl
import os
import pwd
import stat
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from calabash.adapters.host.failures import failure, require_descriptor
from calabash.adapters.host.processes import users_of_processes
from calabash.model.errors import CalabashError, Reason
from calabash.node.modes.protocol import WorkerUsers

OURSELVES = -1
DIRECTORY = Path("/run/calabash-worker-users")


@dataclass(slots=True, kw_only=True)
class WorkerUser:
    """An assigned user; ``uid`` -1: the pool's own. ``descriptor`` holds the lock; -1: no lock."""

    uid: int = OURSELVES
    descriptor: int = -1

    def close(self) -> None:
        """Close the lock file; a process that has inherited it still holds the lock."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class FreeUsers:
    """Allocator of user IDs from a range. IDs are assigned in a cycle, so that an ID is not soon used again.

    Args:
        users: the range; None: workers run as the pool's user.
        fallback: directory for the pool's locks if ``directory`` cannot be written, as in a container with a read-only
            file system. Users of other pools are then recognised by their running processes.
        directory: directory for the locks of all pools of this machine.
    """

    def __init__(self, users: WorkerUsers | None, *, fallback: Path, directory: Path = DIRECTORY) -> None:
        self._users = users
        self._directory = directory
        self._fallback = fallback
        self._last = users.first - 1 if users is not None else 0

    def one(self, taken: Collection[int]) -> WorkerUser:
        """Take a user that is not in ``taken``, has no account and no running process, and is not taken by another pool.

        Returns the pool's own user if there is no range or the pool is not root. Raises NO_CAPACITY.
        """
        users = self._users
        if users is None or os.geteuid() != 0:
            return WorkerUser()
        count = users.last - users.first + 1
        running = users_of_processes()
        for step in range(1, count + 1):
            user = users.first + (self._last - users.first + step) % count
            if user in taken or user in running or _has_a_name(user):
                continue
            descriptor = self._locked(user)
            if descriptor >= 0:
                self._last = user
                return WorkerUser(uid=user, descriptor=descriptor)
        raise CalabashError(
            f"all {count} users for workers are taken",
            reason=Reason.NO_CAPACITY,
            hint="enlarge the range in pool.toml, [workers]",
        )

    def _locked(self, user: int) -> int:
        """Return a descriptor that holds the lock of a user; -1 if another pool holds it. Raises CalabashError."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            try:
                _make_private(self._directory)
            except OSError as error:
                if error.errno not in {errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOENT}:
                    raise
                self._directory = self._fallback
                _make_private(self._directory)
            descriptor = os.open(self._directory / str(user), flags, 0o600)
        except OSError as error:
            raise failure(error, f"user {user} for workers cannot be locked") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return -1
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor


def _make_private(directory: Path) -> None:
    directory.mkdir(mode=0o700, exist_ok=True)
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise CalabashError(
            f"{directory} is not a directory that only the pool's user can write",
            reason=Reason.NOT_PERMITTED,
            hint="remove it",
        )


def _has_a_name(user: int) -> bool:
    try:
        pwd.getpwuid(user)
    except KeyError:
        require_descriptor()
        return False
    return True
