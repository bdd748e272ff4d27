"""What a client keeps: the servers that it knows with their tokens, and the keys of leases that it holds.

All of it is below ``remote`` in the user's home of Calabash, readable by the user only. A program is told of its lease by the
path of a file: neither its environment nor its command line has a secret.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from calabash.model.errors import CalabashError, Reason
from calabash.model.names import NAME_HINT, NAME_PATTERN
from calabash.remote.addresses import parse_address
from calabash.remote.contact import ServerContact
from calabash.remote.directory import make_directory
from calabash.remote.structfiles import read_struct, write_struct
from calabash.seams.host.files import write_durably

SERVERS_FILE, LEASES_DIRECTORY = "servers.json", "leases"


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
        with contextlib.suppress(OSError):
            (self._directory / LEASES_DIRECTORY / os.path.basename(lease)).unlink(missing_ok=True)

    def _known(self) -> list[KnownServer]:
        return read_struct(self._path, KnownServers).servers if self._path.exists() else []

    def _write(self, servers: Iterable[KnownServer]) -> None:
        write_struct(self._path, KnownServers(servers=list(servers)))
