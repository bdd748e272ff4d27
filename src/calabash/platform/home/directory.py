"""Home directory of a pool: its lock, its files, and their modes.

The modes are set at each start, because the umask or another creator of a file may have set others. Other users may
traverse the home (mode 0711) to the socket and to their slots, and read nothing else. A user who can open a file can lock
it, and a lock on the database would stop all allocations.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from calabash.adapters.host.files import disk_full_is_a_reason, free_bytes, lock_exclusive
from calabash.model.errors import CalabashError, Reason
from calabash.platform.home.logs import LOG_FILE

LOCK_FILE = "pool.lock"
DATABASE_FILE = "pool.db"
SETTINGS_FILE = "pool.toml"
FREE_BYTES_MIN = 16 << 20
_PRIVATE = (LOCK_FILE, DATABASE_FILE, f"{DATABASE_FILE}-wal", f"{DATABASE_FILE}-shm", LOG_FILE, f"{LOG_FILE}.1")


def require_room(home: Path) -> None:
    """Raise DISK_FULL if the disk of the home, or of its nearest existing parent, has less than FREE_BYTES_MIN free."""
    place = home
    while not place.exists():
        place = place.parent
    free = free_bytes(place)
    if free < FREE_BYTES_MIN:
        raise CalabashError(
            f"{place} has {free >> 20} MiB free, at least {FREE_BYTES_MIN >> 20} MiB are needed",
            reason=Reason.DISK_FULL,
            hint="free some space, or put the pool elsewhere with CALABASH_HOME",
        )


@contextmanager
def own_home(home: Path) -> Iterator[None]:
    """Create the home, set its modes, and hold its lock while the context lasts.

    Raises POOL_RUNNING, with the pid of the process that holds the lock, if a pool runs already.
    """
    with disk_full_is_a_reason(f"cannot make {home}"):
        home.mkdir(mode=0o711, parents=True, exist_ok=True)
        tighten(home)
        os.close(os.open(home / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        descriptor = lock_exclusive(home / LOCK_FILE)
    if descriptor is None:
        holder = (home / LOCK_FILE).read_text().strip() or "unknown"
        raise CalabashError(
            f"a pool runs already at {home}, pid {holder}",
            reason=Reason.POOL_RUNNING,
            hint="use it, or stop it with `calabash down`",
        )
    try:
        with disk_full_is_a_reason(f"cannot write {home / LOCK_FILE}"):
            os.fchmod(descriptor, 0o600)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def open_log(home: Path) -> BinaryIO:
    """Create the home and open its log for appending. Raises CalabashError if the home belongs to another user."""
    with disk_full_is_a_reason(f"cannot make {home}"):
        home.mkdir(mode=0o711, parents=True, exist_ok=True)
        require_own(home)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        return open(os.open(home / LOG_FILE, flags, 0o600), "ab")


def require_own(home: Path) -> None:
    """Raise NOT_PERMITTED if the home belongs to another user, or if its path is a symbolic link of another user."""
    for status in (home.lstat(), home.stat()):
        if status.st_uid != os.geteuid():
            raise CalabashError(
                f"{home} belongs to user id {status.st_uid}, the pool runs as {os.geteuid()}",
                reason=Reason.NOT_PERMITTED,
                hint="name a home of your own with CALABASH_HOME",
            )


def tighten(home: Path) -> None:
    """Set the modes of the home and of the pool's files. Raises NOT_PERMITTED if the home belongs to another user."""
    require_own(home)
    home.chmod(0o711)
    for name in (*_PRIVATE, SETTINGS_FILE):
        with suppress(FileNotFoundError):
            path = home / name
            if stat.S_ISREG(path.lstat().st_mode):
                path.chmod(0o600)
