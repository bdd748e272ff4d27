"""Client-side files of remote devices: known servers with their tokens, and the keys of held leases.

All files are below ``remote`` in the user's Calabash home, readable by the user only. Each lease has a secret key,
which is stored in a file of its own. A program gets the path of this file in its environment, so neither its
environment nor its command line contains the secret.

A run is one execution of a program on remote devices. A run that owns its lease keeps a file in ``runs`` locked for as
long as one of its processes lives. If a file is not locked, its run has ended and the lease is being released. The next
run waits for the release, because it may need the same devices.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from calabash.adapters.host.files import Lease, write_durably
from calabash.broker.addresses import parse_address
from calabash.broker.client.connection import RemoteServerClient
from calabash.broker.json_files import read_struct, write_struct
from calabash.broker.server.directory import make_directory
from calabash.model.errors import CalabashError, Reason
from calabash.model.names import NAME_HINT, NAME_PATTERN

SERVERS_FILE, LEASES_DIRECTORY, RUNS_DIRECTORY = "servers.json", "leases", "runs"
_RETURN_S, _POLL_S = 10.0, 0.02


class KnownServer(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Remote server as stored: its name, ``HOST:PORT``, the fingerprint of its certificate, and the user's token."""

    name: Annotated[str, Meta(pattern=NAME_PATTERN)]
    address: str
    certificate: str
    token: str

    def __repr__(self) -> str:
        return f"KnownServer(name={self.name!r}, address={self.address!r})"

    def client(self) -> RemoteServerClient:
        """Return the client for the server."""
        return RemoteServerClient(
            name=self.name, address=parse_address(self.address), certificate=self.certificate, token=self.token
        )


class KnownServers(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Content of ``servers.json``: the known servers in the order in which they were added."""

    servers: list[KnownServer] = []


class RemoteAccount:
    """Known servers, lease keys and runs of one user, stored below ``directory``."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._path = directory / SERVERS_FILE

    def servers(self, *names: str) -> list[RemoteServerClient]:
        """Return the servers with the given names, or all servers if no name is given.

        Raises:
            CalabashError: NOT_FOUND if a name is unknown or no server is known.
        """
        known = read_struct(self._path, KnownServers).servers if self._path.exists() else []
        by_name = {server.name: server for server in known}
        for name in names:
            if name not in by_name:
                there = ", ".join(by_name) or "none"
                raise CalabashError(
                    f"there is no server {name!r}",
                    reason=Reason.NOT_FOUND,
                    hint=f"there are: {there}; see `calabash remote add`",
                )
        chosen = [by_name[name] for name in names] if names else known
        if not chosen:
            raise CalabashError(
                "no remote GPU server is configured",
                reason=Reason.NOT_FOUND,
                hint="add one with `calabash remote add HOST:PORT --token FILE`",
            )
        return [server.client() for server in chosen]

    def add(self, server: RemoteServerClient) -> None:
        """Store a server, replacing the one with the same name.

        Raises:
            CalabashError: BAD_REQUEST if its name is not valid.
        """
        make_directory(self._directory)
        try:
            kept = msgspec.convert(
                {
                    "name": server.name,
                    "address": str(server.address),
                    "certificate": server.certificate,
                    "token": server.token,
                },
                KnownServer,
            )
        except msgspec.ValidationError:
            raise CalabashError(
                f"{server.name[:80]!r} is not a name", hint=f"give one with --name: {NAME_HINT}"
            ) from None
        self._write([*(s for s in self._known() if s.name != server.name), kept])

    def remove(self, name: str) -> None:
        """Delete the server of that name. Raises NOT_FOUND if it is unknown."""
        self.servers(name)
        self._write(s for s in self._known() if s.name != name)

    def write_key(self, server: RemoteServerClient, lease: str, key: str, grace_s: float) -> Path:
        """Write the key file of a lease and return its path, which the program gets in its environment.

        Args:
            server: server that granted the lease.
            lease: ID of the lease.
            key: secret with which the program proves that it may use the lease.
            grace_s: seconds for which the server keeps the lease without a renewal.
        """
        directory = self._directory / LEASES_DIRECTORY
        make_directory(self._directory)
        make_directory(directory)
        path = directory / lease
        lines = [f"server={server.address}", f"lease={lease}", f"key={key}", f"grace_s={grace_s:.0f}"]
        write_durably(path, "".join(f"{line}\n" for line in lines).encode())
        return path

    def key_file(self, lease: str) -> Path:
        """Return the path of the key file of a lease.

        Raises:
            CalabashError: NOT_FOUND if the key is not on this machine.
        """
        path = self._directory / LEASES_DIRECTORY / os.path.basename(lease)
        if not lease or not path.is_file():
            raise CalabashError(
                f"the key of lease {lease[:40]!r} is not on this machine",
                reason=Reason.NOT_FOUND,
                hint="a lease can be used only on the machine that reserved it; see `calabash remote sessions`",
            )
        return path

    def delete_key(self, lease: str) -> None:
        """Delete the key and the run file of a lease that was released."""
        for directory in (LEASES_DIRECTORY, RUNS_DIRECTORY):
            with contextlib.suppress(OSError):
                (self._directory / directory / os.path.basename(lease)).unlink(missing_ok=True)

    def lock_run(self, lease: str) -> int:
        """Lock the run file of a lease with a shared lock and return the descriptor of the file.

        Descendants of the program inherit the descriptor. The kernel keeps the lock until the last of them has closed
        it, so the lock shows that the run still lives.
        """
        make_directory(self._directory)
        make_directory(self._directory / RUNS_DIRECTORY)
        path = self._directory / RUNS_DIRECTORY / os.path.basename(lease)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_SH)  # :func:`_ended` locks it for a moment
        return descriptor

    def ended_runs(self) -> set[str]:
        """Return the IDs of leases whose runs have ended and that are being released."""
        directory = self._directory / RUNS_DIRECTORY
        return {path.name for path in directory.iterdir() if _ended(path)} if directory.is_dir() else set()

    def wait_until_released(self, leases: Iterable[str], within_s: float = _RETURN_S) -> None:
        """Wait until the leases of ended runs are released, at most ``within_s`` seconds.

        A lease is released by its keeper, a background process (``lease_keeper``). If the keeper was killed, the lease
        is not released in time. Its run file is then deleted, so that later runs do not wait for it. The server ends
        such a lease after the grace period.
        """
        returning = [self._directory / RUNS_DIRECTORY / lease for lease in leases]
        deadline = time.monotonic() + within_s
        while returning and time.monotonic() < deadline:
            time.sleep(_POLL_S)
            returning = [path for path in returning if _ended(path)]
        for path in returning:
            path.unlink(missing_ok=True)

    def _known(self) -> list[KnownServer]:
        return read_struct(self._path, KnownServers).servers if self._path.exists() else []

    def _write(self, servers: Iterable[KnownServer]) -> None:
        write_struct(self._path, KnownServers(servers=list(servers)))


def _ended(path: Path) -> bool:
    try:
        run = Lease(path)
    except FileNotFoundError:
        return False
    try:
        return not run.held()
    finally:
        run.close()
