"""State directory of a server: create it, with access for its owner only, lock it, and create the certificate."""

from __future__ import annotations

import datetime
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from calabash.adapters.host.files import lock_exclusive, write_durably
from calabash.model.errors import CalabashError, Reason

LOCK_FILE, SOCKET_FILE, CERTIFICATE_FILE, KEY_FILE = "server.lock", "server.sock", "certificate.pem", "key.pem"
LOG_FILE, ADDRESS_FILE = "server.log", "address"
_SOCKET_PATH_BYTES_MAX = 107


@contextmanager
def locked_directory(directory: Path) -> Iterator[None]:
    """Create the server's directory and hold its lock while the context lasts.

    Raises:
        CalabashError: POOL_RUNNING if another server holds the lock, NOT_PERMITTED if the directory belongs to another
            user.
    """
    make_directory(directory)
    path = directory / SOCKET_FILE
    if len(os.fsencode(path)) > _SOCKET_PATH_BYTES_MAX:
        raise CalabashError(
            f"the socket path {path} has more than {_SOCKET_PATH_BYTES_MAX} bytes",
            hint="set CALABASH_HOME to a shorter path",
        )
    descriptor = lock_exclusive(directory / LOCK_FILE)
    if descriptor is None:
        holder = (directory / LOCK_FILE).read_text().strip() or "unknown"
        raise CalabashError(
            f"a server is already running at {directory}, pid {holder}",
            reason=Reason.POOL_RUNNING,
            hint="use it, or stop it with `calabash remote server down`",
        )
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def make_directory(directory: Path) -> None:
    """Create a directory with mode 0700. Raises NOT_PERMITTED if it belongs to another user."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = directory.stat()
    if status.st_uid != os.geteuid():
        raise CalabashError(
            f"{directory} belongs to user ID {status.st_uid}, not to {os.geteuid()}",
            reason=Reason.NOT_PERMITTED,
            hint="set CALABASH_HOME to a directory of your own",
        )
    if stat.S_IMODE(status.st_mode) & 0o077:
        directory.chmod(0o700)


def certificate_of(directory: Path, name: str) -> bytes:
    """Return the server's certificate in PEM, created together with its key if it does not exist."""
    from calabash.broker.crypto import make_certificate  # noqa: PLC0415 - clients need no cryptography

    certificate, key = directory / CERTIFICATE_FILE, directory / KEY_FILE
    if not certificate.exists():
        made = make_certificate(name, datetime.datetime.now(datetime.UTC))
        write_durably(key, made.key)
        write_durably(certificate, made.certificate)
    return certificate.read_bytes()
