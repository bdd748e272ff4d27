"""Real PostgreSQL server for tests: its own data directory, port and socket, run by an unprivileged user."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

# Parameters of tests that hold for both databases; `make test` needs no PostgreSQL server.
DATABASES = ("sqlite", pytest.param("postgresql", marks=pytest.mark.complete))


def _binaries() -> Path | None:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda p: int(p.parent.parent.name))
    if found:
        return found[-1].parent
    on_path = shutil.which("initdb")
    return Path(on_path).parent if on_path else None


def _unprivileged() -> str | None:
    """Return the user to run PostgreSQL as, since it refuses to run as root; None if this process is not root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name).pw_name
        except KeyError:
            continue
    pytest.skip("PostgreSQL cannot run as root and there is no user postgres or nobody")


class Server:
    """A server that can be stopped and started again. Databases are created and dropped by name."""

    def __init__(self, root: Path, binaries: Path, user: str | None) -> None:
        self.root = root
        self._binaries = binaries
        self._user = user
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self._command("initdb", "-D", str(root / "data"), "-U", "calabash", "-A", "trust", "-E", "UTF8", "--no-sync")

    def _command(self, name: str, *words: str) -> None:
        command = [str(self._binaries / name), *words]
        subprocess.run(
            command, check=True, capture_output=True, timeout=60, user=self._user, cwd="/", env={"LC_ALL": "C"}
        )

    def evidence(self) -> Iterable[Path]:
        """Return the server's log, which is kept if a test fails."""
        return [self.root / "log"]

    def start(self) -> None:
        options = f"-p {self.port} -k {self.root} -c listen_addresses=127.0.0.1 -c fsync=off -c shared_buffers=16MB"
        log = str(self.root / "log")
        self._command("pg_ctl", "-D", str(self.root / "data"), "-w", "-l", log, "-o", options, "start")

    def stop(self) -> None:
        self._command("pg_ctl", "-D", str(self.root / "data"), "-m", "immediate", "stop")

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://calabash@127.0.0.1:{self.port}/{database}"

    @contextmanager
    def database(self) -> Iterator[str]:
        """Create an empty database, yield its URL, and drop it afterwards."""
        name = "t" + uuid.uuid4().hex
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        yield self.url(name)
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@contextmanager
def running_server() -> Iterator[Server]:
    """Run a server; skip the test if PostgreSQL is not installed."""
    binaries = _binaries()
    if binaries is None:
        pytest.skip("PostgreSQL is not installed (Debian package postgresql)")
    user = _unprivileged()
    root = Path(tempfile.mkdtemp(prefix="calabash-pg-"))
    try:
        if user is not None:
            shutil.chown(root, user)
        server = Server(root, binaries, user)
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(root, ignore_errors=True)
