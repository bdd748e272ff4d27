"""Durable files, lease files and free disk space.

A lease is an empty file. Processes hold a shared flock on the file, and their children inherit the lock. The kernel
releases the lock when the last of these processes has ended, for whatever reason. A process that gets the exclusive
lock knows that no holder is left.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from calabash.adapters.host.failures import FULL, failure
from calabash.model.errors import CalabashError, Reason, cause

SECRET_BYTES_MAX = 4096


def lock_exclusive(path: Path) -> int | None:
    """Lock a file exclusively, creating it if it is missing; return its descriptor, or None if it is locked already."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


class Lease:
    """Lease file of a slot in the pool process, which keeps the file open as long as the slot exists.

    ``void`` is set to True when the lease is not valid any more. Locks that processes still hold on the file are then
    ignored.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.void = False  # True: its holders have no right to it any more
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)

    def held(self) -> bool:
        """Return True if any process holds the lease."""
        if self.void:
            return False
        if not self.try_take():
            return True
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        return False

    def try_take(self) -> bool:
        """Lock the lease exclusively, so that no process can begin to use it; return False if it is in use."""
        if self.void:
            return True
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def sync_directory(path: Path) -> None:
    """Make added and removed names of a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_durably(path: Path, content: bytes) -> None:
    """Replace a file of this user as a whole, durably and with mode 0600. Raises OSError."""
    _replace(path, content, durably=True)
    sync_directory(path.parent)


def write_ahead(path: Path, content: bytes) -> None:
    """Replace a file as ``write_durably`` does, but without waiting for the disk. Raises OSError.

    The new content may be lost in a crash until ``settle`` has been called.
    """
    _replace(path, content, durably=False)


def settle(path: Path) -> None:
    """Wait until a file that ``write_ahead`` has written, and its name, are on the disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    sync_directory(path.parent)


def _replace(path: Path, content: bytes, *, durably: bool) -> None:
    coming = path.with_name(f".{path.name}.new")
    descriptor = os.open(coming, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.fchmod(descriptor, 0o600)
        view = memoryview(content)
        while view:
            view = view[os.write(descriptor, view) :]
        if durably:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
    coming.rename(path)


def free_bytes(path: Path) -> int:
    """Return the bytes that an ordinary user can still write on the file system of ``path``."""
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize


@contextmanager
def disk_full_is_a_reason(what: str) -> Iterator[None]:
    """Context that turns an OSError for lack of space into CalabashError(DISK_FULL); ``what`` is the failed step."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise failure(error, what) from error


def private_text(path: str) -> str:
    """Return the secret in a file without surrounding blanks. Raises BAD_FILE if other users can read the file."""
    try:
        with open(path, "rb") as source:
            open_to = os.fstat(source.fileno()).st_mode & 0o077
            secret = source.read(SECRET_BYTES_MAX).decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise CalabashError(f"cannot read the secret in {path}: {cause(error)}", reason=Reason.BAD_FILE) from None
    if open_to or not secret:
        raise CalabashError(
            f"{path} {'can be read by others' if open_to else 'is empty'}",
            reason=Reason.BAD_FILE,
            hint=f"chmod 600 {path}" if open_to else "write the secret into it",
        )
    return secret
