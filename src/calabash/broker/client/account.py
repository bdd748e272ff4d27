"""What a client keeps: the servers that it knows with their tokens, and the keys of leases that it holds.

All of it is below ``remote`` in the user's home of Calabash, readable by the user only. A program is told of its lease by the
path of a file: neither its environment nor its command line has a secret.

A run that has a lease for itself holds an empty file locked for as long as it or a descendant lives. One that is there and
held by nobody is of a run that has ended, whose lease is being given back: whoever comes right after it waits for that.
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
from calabash.broker.client.connection import ServerContact
from calabash.broker.json_files import read_struct, write_struct
from calabash.broker.server.directory import make_directory
from calabash.model.errors import CalabashError, Reason
from calabash.model.names import NAME_HINT, NAME_PATTERN

SERVERS_FILE, LEASES_DIRECTORY, RUNS_DIRECTORY = "servers.json", "leases", "runs"
_RETURN_S, _LOOK_S = 10.0, 0.02


class KnownServer(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """A server as it is kept."""

    name: Annotated[str, Meta(pattern=NAME_PATTERN)]
    address: str
    certificate: str
    token: str

    def __repr__(self) -> str:
        return f"KnownServer(name={self.name!r}, address={self.address!r})"

    def contact(self) -> ServerContact:
        return ServerContact(
            name=self.name, address=parse_address(self.address), certificate=self.certificate, token=self.token
        )


class KnownServers(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """All of them, as they were added."""

    servers: list[KnownServer] = []


class RemoteAccount:
    """The files below ``directory``."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._path = directory / SERVERS_FILE

    def servers(self, *names: str) -> list[ServerContact]:
        """Those of these names; all when none is given. Raises NOT_FOUND when there is none."""
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
                "no server of remote GPUs is known",
                reason=Reason.NOT_FOUND,
                hint="add one with `calabash remote add HOST:PORT --token FILE`",
            )
        return [server.contact() for server in chosen]

    def add(self, server: ServerContact) -> None:
        """Keep it, instead of one of the same name."""
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
        """Raises NOT_FOUND."""
        self.servers(name)
        self._write(s for s in self._known() if s.name != name)

    def keep_key(self, server: ServerContact, lease: str, key: str, grace_s: float) -> Path:
        """The file that a program of the lease is given."""
        directory = self._directory / LEASES_DIRECTORY
        make_directory(self._directory)
        make_directory(directory)
        path = directory / lease
        lines = [f"server={server.address}", f"lease={lease}", f"key={key}", f"grace_s={grace_s:.0f}"]
        write_durably(path, "".join(f"{line}\n" for line in lines).encode())
        return path

    def key_file(self, lease: str) -> Path:
        """Where the key of a lease is. Raises NOT_FOUND when it is not here."""
        path = self._directory / LEASES_DIRECTORY / os.path.basename(lease)
        if not lease or not path.is_file():
            raise CalabashError(
                f"the key of lease {lease[:40]!r} is not on this machine",
                reason=Reason.NOT_FOUND,
                hint="only who has reserved it can use it; see `calabash remote sessions`",
            )
        return path

    def forget_key(self, lease: str) -> None:
        """Its run has nothing to give back any more."""
        for directory in (LEASES_DIRECTORY, RUNS_DIRECTORY):
            with contextlib.suppress(OSError):
                (self._directory / directory / os.path.basename(lease)).unlink(missing_ok=True)

    def hold(self, lease: str) -> int:
        """A descriptor, to be inherited, that says for as long as any process has it open that the run of a lease lives."""
        make_directory(self._directory)
        make_directory(self._directory / RUNS_DIRECTORY)
        path = self._directory / RUNS_DIRECTORY / os.path.basename(lease)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_SH)  # who looks at it holds it for a moment
        return descriptor

    def ended_runs(self) -> set[str]:
        """Leases of runs that have ended and are being given back."""
        directory = self._directory / RUNS_DIRECTORY
        return {path.name for path in directory.iterdir() if _ended(path)} if directory.is_dir() else set()

    def until_returned(self, leases: Iterable[str], within_s: float = _RETURN_S) -> None:
        """Wait for the leases of runs that have ended to be given back.

        One that nobody gives back in time, as its keeper was killed, is waited for only once: the server ends it.
        """
        returning = [self._directory / RUNS_DIRECTORY / lease for lease in leases]
        deadline = time.monotonic() + within_s
        while returning and time.monotonic() < deadline:
            time.sleep(_LOOK_S)
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
