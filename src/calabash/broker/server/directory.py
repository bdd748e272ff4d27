"""The directory of a server, and what is in it: for its owner only."""

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
def own_directory(directory: Path) -> Iterator[None]:
    """Make the server's directory, which nobody else may look into, and hold its lock."""
    make_directory(directory)
    path = directory / SOCKET_FILE
    if len(os.fsencode(path)) > _SOCKET_PATH_BYTES_MAX:
        raise CalabashError(f"the path {path} is too long for a socket", hint="set CALABASH_HOME to a shorter path")
    descriptor = lock_exclusive(directory / LOCK_FILE)
    if descriptor is None:
        holder = (directory / LOCK_FILE).read_text().strip() or "unknown"
        raise CalabashError(
            f"a server runs already at {directory}, pid {holder}",
            reason=Reason.POOL_RUNNING,
            hint="use it, or stop it with `calabash server down`",
        )
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def make_directory(directory: Path) -> None:
    """The server's directory, 0700. Raises NOT_PERMITTED when it is somebody else's."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = directory.stat()
    if status.st_uid != os.geteuid():
        raise CalabashError(
            f"{directory} belongs to user id {status.st_uid}, this is {os.geteuid()}",
            reason=Reason.NOT_PERMITTED,
            hint="name a home of your own with CALABASH_HOME",
        )
    if stat.S_IMODE(status.st_mode) & 0o077:
        directory.chmod(0o700)


def certificate_of(directory: Path, name: str) -> bytes:
    """The server's certificate, PEM, made with its key when there is none yet."""
    from calabash.broker.crypto import make_certificate  # noqa: PLC0415 - not on the way of a client

    certificate, key = directory / CERTIFICATE_FILE, directory / KEY_FILE
    if not certificate.exists():
        made = make_certificate(name, datetime.datetime.now(datetime.UTC))
        write_durably(key, made.key)
        write_durably(certificate, made.certificate)
    return certificate.read_bytes()
