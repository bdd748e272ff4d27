"""As which users workers run: users that nobody else is, so that a worker can do nothing to processes of others.

All pools of root on a machine take users from the same range by default. A pool locks a file for the user that it takes, in a
directory of root's, and hands the open file to the host of the workers: the kernel drops the lock when the last process that
has it is gone, however pools and hosts end.
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
    """A user that is taken; ``uid`` -1: the pool's own. ``descriptor`` holds the lock, -1: there is none."""

    uid: int = OURSELVES
    descriptor: int = -1

    def close(self) -> None:
        """Let go of the lock; a process that has inherited it still holds it."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class FreeUsers:
    """Users of a range, one after the other, so that a user is not soon taken again. None: there are no workers.

    Args:
        fallback: where the pool's own locks are if it may not write the directory of all pools, as in a container with a
            file system that is read-only. Other pools are known by their processes there.
        directory: where the locks of all pools of this machine are.
    """

    def __init__(self, users: WorkerUsers | None, *, fallback: Path, directory: Path = DIRECTORY) -> None:
        self._users = users
        self._directory = directory
        self._fallback = fallback
        self._last = users.first - 1 if users is not None else 0

    def one(self, taken: Collection[int]) -> WorkerUser:
        """Take a user that is not in ``taken``, that no account has, that no other pool has taken and that no process of this
        machine is. Raises NO_CAPACITY."""
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
            hint="give more of them in pool.toml, [workers]",
        )

    def _locked(self, user: int) -> int:
        """Return a descriptor that holds the lock of a user; -1: another pool holds it. Raises CalabashError."""
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
            raise failure(error, f"user {user} for workers cannot be taken") from error
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
        raise CalabashError(f"{directory} can be written by others", reason=Reason.NOT_PERMITTED, hint="remove it")


def _has_a_name(user: int) -> bool:
    try:
        pwd.getpwuid(user)
    except KeyError:
        require_descriptor()
        return False
    return True
