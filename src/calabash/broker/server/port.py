"""Accept connections on the server's single port and dispatch them to a lease's worker or the HTTPS server.

The first TLS record of a connection tells to which of the two it belongs. It is peeked at (``MSG_PEEK``), not read,
because the next process must read it too. It must arrive within a few seconds. The kernel wakes this process only when
all bytes that the record announces have arrived. A peer that sends single bytes therefore costs one wake-up, and a peer
that sends nothing costs one descriptor until the timeout.

At most UNKNOWN_MAX connections wait for their first record. If there are more, the peer (a local user, or an address)
with the most of them loses its oldest one.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from typing import Protocol

from calabash.adapters.host.tcp_peers import local_peer
from calabash.broker.server.first_record import (
    HELLO_BYTES_MAX,
    NO_SUCH_LEASE,
    MoreNeeded,
    SessionBegins,
    SomethingElse,
    classify,
)
from calabash.transport.connections import Connection, Connections
from calabash.transport.listening import Acceptor

FIRST_RECORD_S = 5.0
HANDOVER_S = 5.0
UNKNOWN_MAX = 2048
_WAKES_MAX = 20
_PAUSE_S = 0.01
_GREETING = struct.Struct("<8sHHI16s32s")  # native/remote/wire/greeting.h
_HANDOVER_KIND, _GREETING_VERSION, _GREETED = 2, 1, 0


class PortServices(Protocol):
    """The worker processes and the server to which the connections of a port are passed."""

    def session_target(self, lease: str, session: str, peer: str) -> tuple[str, str] | None:
        """Return the path of the worker's socket and the key of the lease for a session; None for an unknown lease."""
        ...

    async def pass_on(self, connection: socket.socket) -> None:
        """Handle a connection that is not a session."""
        ...

    def count(self, kind: str) -> None:
        """Count a connection by its kind, for the metrics."""
        ...


class PortDispatcher:
    """Accepts the connections of a listening socket and passes each to the process or server that handles it.

    Args:
        listener: the listening socket; ``serve`` closes it at its end.
        services: handle the connections.
    """

    def __init__(self, listener: socket.socket, services: PortServices) -> None:
        self._services = services
        self._unknown = Connections(most=UNKNOWN_MAX, per_peer=UNKNOWN_MAX, peer=local_peer)
        self._acceptor = Acceptor(listener, self._receive, self._unknown)

    async def serve(self) -> None:
        """Accept connections until cancelled."""
        self._acceptor.start()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await self._acceptor.end(HANDOVER_S)

    def _drop(self, receiving: asyncio.Task[None]) -> None:
        receiving.cancel()
        self._services.count("dropped")

    async def _receive(self, connection: socket.socket, unknown: Connection) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._unknown.set_close(unknown, lambda: self._drop(task))
        with contextlib.closing(connection):
            try:
                host, port = connection.getpeername()[:2]
                async with asyncio.timeout(FIRST_RECORD_S):
                    found = await self._classify(connection)
            except (TimeoutError, OSError):
                self._services.count("silent")
                return
            finally:
                self._unknown.ended(unknown)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
            if isinstance(found, SessionBegins):
                self._services.count(await self._hand_over(connection, found, f"{host}:{port}"))
            else:
                self._services.count("command line")
                await self._services.pass_on(connection.dup())

    async def _classify(self, connection: socket.socket) -> SessionBegins | SomethingElse:
        """Peek at the first record until it can be classified. Raises OSError if the peer disconnects before that."""
        for _ in range(_WAKES_MAX):
            try:
                there = connection.recv(HELLO_BYTES_MAX, socket.MSG_PEEK)
            except BlockingIOError:
                await _readable(connection)
                continue
            if not there:
                break
            found = classify(there)
            if not isinstance(found, MoreNeeded):
                return found
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, found.size)
            await _readable(connection)
            await asyncio.sleep(_PAUSE_S)  # a closed connection stays readable
        raise ConnectionError

    async def _hand_over(self, connection: socket.socket, found: SessionBegins, peer: str) -> str:
        """Pass a session's connection to the worker of its lease; return the result, which the metrics count."""
        target = self._services.session_target(found.lease, found.session, peer)
        if target is None:
            with contextlib.suppress(OSError):
                connection.send(NO_SUCH_LEASE)
                connection.shutdown(socket.SHUT_WR)
            return "unknown lease"
        path, key = target
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            async with asyncio.timeout(HANDOVER_S):
                status = await hand_over(connection, path, bytes.fromhex(found.session), bytes.fromhex(key))
        except (TimeoutError, OSError):
            return "worker away"
        return "session" if status == _GREETED else "refused by worker"


async def hand_over(connection: socket.socket, path: str, session: bytes, key: bytes) -> int:
    """Pass a program's connection to the parent process of a lease's workers, and return the status byte of its answer.

    Args:
        connection: the connection.
        path: Unix socket of the parent process.
        session: ID of the session, 16 bytes.
        key: key of the lease, 32 bytes.

    Returns:
        0 if the process has accepted the connection.

    Raises:
        OSError: if the process cannot be reached, or closes its connection without a status.
    """
    loop = asyncio.get_running_loop()
    greeting = _GREETING.pack(b"CALABASH", _GREETING_VERSION, _HANDOVER_KIND, 0, session, key)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as host:
        host.setblocking(False)
        await loop.sock_connect(host, path)
        if socket.send_fds(host, [greeting], [connection.fileno()]) != len(greeting):
            raise ConnectionError
        answer = await loop.sock_recv(host, 1)
    if not answer:
        raise ConnectionError
    return answer[0]


async def _readable(connection: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    there: asyncio.Future[None] = loop.create_future()
    loop.add_reader(connection, _set_done, there)
    try:
        await there
    finally:
        loop.remove_reader(connection)


def _set_done(there: asyncio.Future[None]) -> None:
    if not there.done():
        there.set_result(None)
