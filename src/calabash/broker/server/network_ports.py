"""Listen at ports of tenant networks, inside the network namespaces that the pool keeps for these ports.

A port here is a port of a virtual network, with its own IP addresses, not a TCP port number. The server process stays
in its own network namespace. Only its listening socket is created in the namespace of the tenant's port, so only
programs in that tenant's network can connect to it. The pool keeps a namespace for as long as the server renews it,
also while the pool or the server restarts, and established connections continue. If the pool had to create the
namespace anew, the server opens new listening sockets in it.
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
from calabash.adapters.pool.asynchronous import AsyncPoolClient
from calabash.api import endpoints
from calabash.broker.addresses import PORT, ServerAddress
from calabash.broker.server.listener import listening
from calabash.model.addresses import check_path
from calabash.model.errors import CalabashError, Reason

KEEP_EVERY_S = 5.0
READY_S = 60.0

log = structlog.get_logger(__name__)
Serve = Callable[[socket.socket], Callable[[], None]]  # serves a listener; the result stops it


@dataclass(frozen=True, slots=True)
class TenantListener:
    """Port of a tenant network at which to listen, for example ``red/a/gpu1``, and the TCP port number."""

    port: str
    number: int

    def __str__(self) -> str:
        return f"{self.port}:{self.number}"


def parse_tenant_listener(text: str) -> TenantListener:
    """Parse a listener of the form ``red/a/gpu1`` or ``red/a/gpu1:7433``; the TCP port number defaults to 7433.

    Raises:
        CalabashError: BAD_REQUEST if the text has another form.
    """
    port, colon, digits = text.strip().partition(":")
    check_path(port, 3, "port")
    if colon and not (digits.isascii() and digits.isdigit() and 1 <= int(digits) <= 65535):
        raise CalabashError(f"{text[:120]!r} is not a port to listen at", hint=f"like red/a/gpu1 or red/a/gpu1:{PORT}")
    return TenantListener(port, int(digits) if colon else PORT)


@dataclass(slots=True)
class _Opened:
    """Listeners of one tenant port.

    Args:
        namespace: device and inode number of the network namespace, which tell whether it was created anew.
        close: functions that stop the listeners.
        addresses: addresses at which they listen.
    """

    namespace: tuple[int, int]
    close: list[Callable[[], None]] = field(default_factory=list)
    addresses: tuple[ServerAddress, ...] = ()


class TenantListeners:
    """Listeners at the tenant ports of a server. All methods run in one event loop.

    Args:
        listeners: ports to listen at.
        pool: client of the pool.
        holder: name under which the server holds the ports in the pool; the same after a restart.
        keep_s: seconds after which the pool releases a port that was not renewed.
        clock: returns monotonic seconds.
    """

    def __init__(
        self,
        listeners: Sequence[TenantListener],
        *,
        pool: AsyncPoolClient,
        holder: str,
        keep_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._listeners = tuple(listeners)
        self._pool = pool
        self._holder = holder
        self._keep_s = keep_s
        self._serve: Serve | None = None
        self._clock = clock
        self._opened: dict[TenantListener, _Opened] = {}
        self._renewed_s = clock()
        self._failure = ""

    def addresses(self) -> list[str]:
        """Return a line ``10.0.1.20:7433 red/a/gpu1`` for each address."""
        return [f"{a} {target.port}" for target, opened in self._opened.items() for a in opened.addresses]

    async def open(self, serve: Serve) -> None:
        """Listen at all ports.

        Args:
            serve: serves a listener until the function that it returns is called.

        Raises:
            CalabashError: if a port cannot be opened. Ports that were opened by then expire in the pool.
        """
        self._serve = serve
        for target in self._listeners:
            await self._renew(target)

    async def renew(self) -> None:
        """Renew the ports in the pool if a renewal is due, and listen again if a namespace was created anew."""
        if not self._listeners or self._clock() - self._renewed_s < min(KEEP_EVERY_S, self._keep_s / 4):
            return
        self._renewed_s = self._clock()
        failure = ""
        for target in self._listeners:
            try:
                await self._renew(target)
            except (CalabashError, OSError) as error:
                failure = str(error)
        if failure != self._failure:
            self._failure = failure
            log.warning("renewal of tenant ports", failure=failure or "none any more")

    async def close(self, *, for_good: bool) -> None:
        """Stop listening.

        Args:
            for_good: True to release the ports in the pool, which cuts established connections. False to leave them in
                the pool for the next server with the same name.
        """
        for target in self._listeners:
            self._end(target)
            if not for_good:
                continue
            try:
                await self._pool.send(endpoints.RELEASE_SERVER_PORT, query={"port": target.port}, timeout_s=READY_S)
            except CalabashError as error:
                log.warning("could not release a port; it expires in the pool", port=target.port, why=error.message)

    async def _renew(self, target: TenantListener) -> None:
        order = {"port": target.port, "holder": self._holder, "keep_s": self._keep_s}
        held = await self._pool.send(endpoints.HOLD_SERVER_PORT, body=order, timeout_s=READY_S)
        path = Path(held["namespace"])
        known = self._opened.get(target)
        if known is not None and known.namespace == _identity(path):
            return
        self._end(target)
        self._opened[target] = self._listen(target, path, held)

    def _listen(self, target: TenantListener, path: Path, held: dict[str, Any]) -> _Opened:
        addresses = tuple(ServerAddress(host, target.number) for host in held["addresses"])
        assert self._serve is not None
        try:
            made = _Opened(namespace=_identity(path), addresses=addresses)
            sockets = namespaces.inside(path, lambda: [listening(address) for address in addresses])
        except OSError as error:
            raise CalabashError(
                f"the network of port {target.port} cannot be entered: {error.strerror or error}",
                reason=Reason.NOT_PERMITTED,
                hint="run a server with --port as root, like its pool",
            ) from error
        made.close += [self._serve(listener) for listener in sockets]
        log.info("server listens in a tenant's network", port=target.port, addresses=", ".join(map(str, addresses)))
        return made

    def _end(self, target: TenantListener) -> None:
        known = self._opened.pop(target, None)
        for close in known.close if known else ():
            close()


def _identity(path: Path) -> tuple[int, int]:
    found = os.stat(path)
    return found.st_dev, found.st_ino
