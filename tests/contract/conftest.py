"""A real PostgreSQL server for the contract tests: its own data directory, port and socket, started once, as nobody."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


def _binaries() -> Path | None:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda p: int(p.parent.parent.name))
    if found:
        return found[-1].parent
    on_path = shutil.which("initdb")
    return Path(on_path).parent if on_path else None


def _unprivileged() -> str | None:
    """PostgreSQL refuses to run as root; the user to run it as then, None when we are not root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name).pw_name
        except KeyError:
            continue
    pytest.skip("PostgreSQL cannot run as root and there is no user postgres or nobody")


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """URL of an empty database on a server that lives as long as the session."""
    binaries = _binaries()
    if binaries is None:
        pytest.skip("PostgreSQL is not installed (Debian package postgresql)")
    user = _unprivileged()
    root = Path(tempfile.mkdtemp(prefix="calabash-pg-"))
    if user is not None:
        shutil.chown(root, user)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    def command(*words: str) -> None:
        subprocess.run(words, check=True, capture_output=True, timeout=60, user=user, cwd="/", env={"LC_ALL": "C"})

    data = root / "data"
    options = f"-p {port} -k {root} -c listen_addresses=127.0.0.1 -c fsync=off -c shared_buffers=16MB"
    command(str(binaries / "initdb"), "-D", str(data), "-U", "calabash", "-A", "trust", "-E", "UTF8", "--no-sync")
    command(str(binaries / "pg_ctl"), "-D", str(data), "-w", "-l", str(root / "log"), "-o", options, "start")
    try:
        yield f"postgresql://calabash@127.0.0.1:{port}/postgres"
    finally:
        command(str(binaries / "pg_ctl"), "-D", str(data), "-m", "immediate", "stop")
        shutil.rmtree(root, ignore_errors=True)
