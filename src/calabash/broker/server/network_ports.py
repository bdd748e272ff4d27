"""Ports of tenant networks that a server listens at, inside the namespaces that its pool keeps for them.

The server stays where it is: only its listening socket is made in the namespace, so what comes in there comes from that
tenant's network, and nobody else reaches it. The pool keeps the namespace while the server says that it is needed, also over a
restart of either: who is connected goes on. A namespace that was made anew meanwhile is listened in again.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog

from calabash.adapters.links import namespaces
from calabash.adapters.pool.asynchronous import PoolDoor
from calabash.broker.addresses import PORT, ServerAddress
from calabash.broker.server.listener import listening
from calabash.model.addresses import check_path
from calabash.model.errors import CalabashError, Reason

PATH = "/v1/networks/places"
KEEP_EVERY_S = 5.0
READY_S = 60.0

log = structlog.get_logger(__name__)
Serve = Callable[[socket.socket], Callable[[], None]]  # until what it returns is called


@dataclass(frozen=True, slots=True)
class TenantDoor:
    """A port of a tenant network, and the number to listen at there."""

    port: str
    number: int

    def __str__(self) -> str:
        return f"{self.port}:{self.number}"


def parse_door(text: str) -> TenantDoor:
    """``red/a/gpu1`` or ``red/a/gpu1:7433``. Raises CalabashError."""
    port, colon, digits = text.strip().partition(":")
    check_path(port, 3, "port")
    if colon and not (digits.isascii() and digits.isdigit() and 1 <= int(digits) <= 65535):
        raise CalabashError(f"{text[:120]!r} is no port to listen at", hint=f"like red/a/gpu1 or red/a/gpu1:{PORT}")
    return TenantDoor(port, int(digits) if colon else PORT)


@dataclass(slots=True)
class _Opened:
    """What is listened at: the namespace by which it is known, and how to end it."""

    namespace: tuple[int, int]
    close: list[Callable[[], None]] = field(default_factory=list)
    addresses: tuple[ServerAddress, ...] = ()


class TenantDoors:
    """The ports of one server. Everything runs in one event loop.

    Args:
        holder: what the pool calls the server, the same after a restart.
        keep_s: how long the pool keeps a port of which it hears nothing.
        clock: seconds that never run backwards.
    """

    def __init__(
        self,
        doors: Sequence[TenantDoor],
        *,
        pool: PoolDoor,
        holder: str,
        keep_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._doors = tuple(doors)
        self._pool = pool
        self._holder = holder
        self._keep_s = keep_s
        self._serve: Serve | None = None
        self._clock = clock
        self._opened: dict[TenantDoor, _Opened] = {}
        self._told_s = clock()
        self._failure = ""

    def addresses(self) -> list[str]:
        """``10.0.1.20:7433 red/a/gpu1``, one for each address."""
        return [f"{a} {door.port}" for door, opened in self._opened.items() for a in opened.addresses]

    async def open(self, serve: Serve) -> None:
        """Listen at all of them. Raises CalabashError; what it holds by then is the pool's to take back in time."""
        self._serve = serve
        for door in self._doors:
            await self._keep(door)

    async def keep(self) -> None:
        """Say now and then that they are needed, and listen again where a namespace is another one."""
        if not self._doors or self._clock() - self._told_s < min(KEEP_EVERY_S, self._keep_s / 4):
            return
        self._told_s = self._clock()
        failure = ""
        for door in self._doors:
            try:
                await self._keep(door)
            except (CalabashError, OSError) as error:
                failure = str(error)
        if failure != self._failure:
            self._failure = failure
            log.warning("ports of tenant networks are not kept", why=failure or "they are again")

    async def close(self, *, for_good: bool) -> None:
        """Listen no more. ``for_good``: who is connected is cut off; else the pool keeps the ports for the next server of this
        name."""
        for door in self._doors:
            self._end(door)
            if not for_good:
                continue
            try:
                await self._pool.call("DELETE", f"{PATH}?port={door.port}", timeout_s=READY_S)
            except CalabashError as error:
                log.warning("a port is not given back; the pool takes it", port=door.port, why=error.message)

    async def _keep(self, door: TenantDoor) -> None:
        order = {"port": door.port, "holder": self._holder, "keep_s": self._keep_s}
        held = await self._pool.call("POST", PATH, order, timeout_s=READY_S)
        path = Path(held["namespace"])
        known = self._opened.get(door)
        if known is not None and known.namespace == _identity(path):
            return
        self._end(door)
        self._opened[door] = self._listen(door, path, held)

    def _listen(self, door: TenantDoor, path: Path, held: dict[str, Any]) -> _Opened:
        addresses = tuple(ServerAddress(host, door.number) for host in held["addresses"])
        assert self._serve is not None
        try:
            made = _Opened(namespace=_identity(path), addresses=addresses)
            sockets = namespaces.inside(path, lambda: [listening(address) for address in addresses])
        except OSError as error:
            raise CalabashError(
                f"the network of port {door.port} cannot be entered: {error.strerror or error}",
                reason=Reason.NOT_PERMITTED,
                hint="a server with --port runs as root, as its pool does",
            ) from error
        made.close += [self._serve(listener) for listener in sockets]
        log.info("server listens in a tenant's network", port=door.port, addresses=", ".join(map(str, addresses)))
        return made

    def _end(self, door: TenantDoor) -> None:
        known = self._opened.pop(door, None)
        for close in known.close if known else ():
            close()


def _identity(path: Path) -> tuple[int, int]:
    found = os.stat(path)
    return found.st_dev, found.st_ino
