"""Durable files, leases and free space.

A lease is an empty file: users hold a shared flock on it, inherited by their children, and the kernel drops it when
the last of them is gone, however they went. Whoever gets the exclusive lock knows that nobody is left.
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
    """A descriptor that holds the file exclusively, created when missing; None when somebody else holds it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


class Lease:
    """The pool's own view of a lease file; open as long as the slot lives."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.void = False  # whoever holds it has no right to it any more
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)

    def held(self) -> bool:
        """Whether any process still uses it."""
        if self.void:
            return False
        if not self.try_take():
            return True
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        return False

    def try_take(self) -> bool:
        """Hold it exclusively, so that nobody can begin to use what is about to be removed; False when it is in use."""
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
    """Make names that were added to or removed from a directory survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_durably(path: Path, content: bytes) -> None:
    """Replace a file of ours as a whole; it survives a power cut and nobody else can read it. Raises OSError."""
    _replace(path, content, durably=True)
    sync_directory(path.parent)


def write_ahead(path: Path, content: bytes) -> None:
    """The same, but for the power cut: that is ``settle``'s, later and together with what else is synced. Raises OSError."""
    _replace(path, content, durably=False)


def settle(path: Path) -> None:
    """A file that was written ahead, and its name, survive a power cut from now on. Raises OSError."""
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
    """Bytes that an ordinary user can still write on the file system of ``path``."""
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize


@contextmanager
def disk_full_is_a_reason(what: str) -> Iterator[None]:
    """An OSError for want of space becomes CalabashError(DISK_FULL)."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise failure(error, what) from error


def private_text(path: str) -> str:
    """A secret in a file of its own, without blanks around it. Raises BAD_FILE for one that others can read."""
    try:
        with open(path, "rb") as source:
            open_to = os.fstat(source.fileno()).st_mode & 0o077
            secret = source.read(SECRET_BYTES_MAX).decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise CalabashError(f"the secret in {path} cannot be read: {cause(error)}", reason=Reason.BAD_FILE) from None
    if open_to or not secret:
        raise CalabashError(
            f"{path} {'can be read by others' if open_to else 'is empty'}",
            reason=Reason.BAD_FILE,
            hint=f"chmod 600 {path}" if open_to else "write the secret into it",
        )
    return secret
