"""Open listening sockets, and accept connections within the limits of ``transport.connections``, with or without TLS.

A connection is counted when it is accepted, before its TLS handshake. So handshakes that never end are limited as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket as sockets
import ssl
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path
from socket import SHUT_RDWR, socket

from calabash.model.errors import CalabashError, Reason
from calabash.transport.connections import Connection, Connections

HANDSHAKE_S = 5.0
BACKLOG = 1024
_AGAIN_S = 0.05  # after an error of accept, such as no free descriptor

Handle = Callable[[socket, Connection], Awaitable[None]]
"""Called with each accepted connection and its entry in the table, which it removes at the end of the connection."""

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter, Connection], Awaitable[None]]
"""Called with the streams of a connection; it is closed afterwards. What it raises of ``SILENT`` is not reported."""

SILENT = (OSError, EOFError, TimeoutError, asyncio.LimitOverrunError, asyncio.CancelledError)
"""The client is gone, silent, too slow, or speaks another protocol; or its connection was closed for another one."""


def listen(host: str, port: int) -> socket:
    """Return a listening TCP socket.

    Args:
        host: address or name to listen on; "" for all IPv4 and IPv6 addresses.
        port: port to listen on; 0 for any free port.

    Raises:
        OSError: the address cannot be used.
    """
    if not host and sockets.has_dualstack_ipv6():
        with contextlib.suppress(OSError):  # IPv6 is not available
            return sockets.create_server(("", port), family=sockets.AF_INET6, backlog=BACKLOG, dualstack_ipv6=True)
    found = sockets.getaddrinfo(host or None, port, type=sockets.SOCK_STREAM, flags=sockets.AI_PASSIVE)
    family, _, _, _, address = min(found, key=lambda one: one[0] is not sockets.AF_INET)
    return sockets.create_server(address, family=family, backlog=BACKLOG)


def listen_unix(path: Path, listener: socket, *, mode: int) -> None:
    """Bind a Unix socket to the path, set its mode and listen on it. Raises BAD_FILE for a path of another file type.

    Replaces an existing socket: the caller holds the lock of the directory, so that socket belongs to a program that has
    ended.
    """
    if path.exists() and not stat.S_ISSOCK(path.lstat().st_mode):
        raise CalabashError(f"{path} is not a socket", reason=Reason.BAD_FILE, hint="move it away")
    path.unlink(missing_ok=True)
    listener.bind(str(path))
    path.chmod(mode)  # before it listens, so that no other user connects in between
    listener.listen(BACKLOG)


def address_of_socket(listener: socket) -> tuple[str, int]:
    """Return the host and the port at which a socket listens."""
    host, port = listener.getsockname()[:2]
    return str(host), int(port)


class Acceptor:
    """Accepts the connections of a listening socket, between ``start`` and ``close`` or ``end``.

    Args:
        listener: socket that is bound and listening; ``end`` closes it, ``close`` does not.
        handle: handles one connection; see ``Handle`` and ``streams``.
        connections: table of the open connections, with their limits.
    """

    def __init__(self, listener: socket, handle: Handle, connections: Connections) -> None:
        self._listener = listener
        self._handle = handle
        self._connections = connections
        self._accepting: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Accept connections from now on."""
        self._listener.setblocking(False)
        self._accepting = asyncio.get_running_loop().create_task(self._accept())

    def close(self) -> None:
        """Accept no more connections, and cancel the tasks of those that are handled."""
        for task in self._all_tasks():
            task.cancel()

    async def wait_closed(self) -> None:
        """Wait until all tasks have ended."""
        await asyncio.gather(*self._all_tasks(), return_exceptions=True)

    async def end(self, within_s: float) -> None:
        """Close the listening socket and the connections whose request is not complete; wait for the others.

        Those that have not ended after ``within_s`` are cancelled.

        Args:
            within_s: longest wait in seconds.
        """
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.gather(self._accepting, return_exceptions=True)
        self._listener.close()
        while self._connections.shed():
            pass
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=within_s)
        self.close()
        await self.wait_closed()

    def _all_tasks(self) -> list[asyncio.Task[None]]:
        return [*self._tasks] if self._accepting is None else [self._accepting, *self._tasks]

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, address = await loop.sock_accept(self._listener)
            except OSError:
                self._connections.shed()
                await asyncio.sleep(_AGAIN_S)
                continue
            self._begin(accepted, str(address[0]))
            await asyncio.sleep(0)  # a connection that waits already is accepted without a pause for others

    def _begin(self, accepted: socket, address: str) -> None:
        connection = self._connections.accept(accepted, address, lambda: shut_down(accepted))
        if connection is None:
            accepted.close()
            return
        task = asyncio.get_running_loop().create_task(self._handled(accepted, connection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _handled(self, accepted: socket, connection: Connection) -> None:
        await self._handle(accepted, connection)


def streams(
    serve: Serve,
    connections: Connections,
    *,
    context: Callable[[], ssl.SSLContext | None],
    limit: int,
    handshake_s: float = HANDSHAKE_S,
) -> Handle:
    """Return a function that handles connections as streams, and closes each when ``serve`` returns.

    Args:
        serve: serves one connection; see ``Serve``.
        connections: table of the open connections.
        context: returns the TLS context for the next connection; None for a connection without TLS.
        limit: most bytes that a stream reader buffers.
        handshake_s: longest duration of a TLS handshake in seconds.
    """

    async def handle(accepted: socket, connection: Connection) -> None:
        transport: asyncio.Transport | None = None
        loop = asyncio.get_running_loop()
        tls = context()
        reader = asyncio.StreamReader(limit, loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        try:
            transport, _ = await loop.connect_accepted_socket(
                lambda: protocol,
                accepted,
                ssl=tls,
                ssl_handshake_timeout=handshake_s if tls is not None else None,
            )
            await serve(reader, asyncio.StreamWriter(transport, protocol, reader, loop), connection)
        except SILENT:
            pass
        finally:
            connections.ended(connection)
            if transport is not None:
                transport.abort()

    return handle


def shut_down(connection: socket) -> None:
    """Shut a socket down. Cancelling its task instead would leave the socket of an unfinished handshake open."""
    with contextlib.suppress(OSError):  # it is closed
        connection.shutdown(SHUT_RDWR)
