"""Accept connections within the limits of ``calabash.transport.connections``, with or without TLS.

A connection is counted when it is accepted, before its TLS handshake. So handshakes that never end are limited as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable
from socket import SHUT_RDWR, socket

from calabash.transport.connections import Connection, Connections

HANDSHAKE_S = 5.0
_AGAIN_S = 0.05  # after an error of accept, such as no free descriptor

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter, Connection], Awaitable[None]]
"""Called with each connection; it is closed afterwards. What it raises of ``SILENT`` is not reported."""

SILENT = (OSError, EOFError, TimeoutError, asyncio.LimitOverrunError, asyncio.CancelledError)
"""The client is gone, silent, too slow, or speaks another protocol; or its connection was closed for another one."""


class Acceptor:
    """Accepts the connections of a listening socket until it is cancelled.

    Args:
        listener: socket that is bound and listening; it stays open.
        serve: serves one connection, which is closed when it returns; see ``Serve``.
        connections: table of the open connections, with their limits.
        context: returns the TLS context for the next connection; None for a connection without TLS.
        limit: most bytes that a stream reader buffers.
        handshake_s: longest duration of a TLS handshake in seconds.
        peer: returns the peer for which a connection counts, from its socket and address.
    """

    def __init__(
        self,
        listener: socket,
        serve: Serve,
        connections: Connections,
        *,
        context: Callable[[], ssl.SSLContext | None],
        limit: int,
        handshake_s: float = HANDSHAKE_S,
        peer: Callable[[socket, str], str] = lambda _, address: address,
    ) -> None:
        self._listener = listener
        self._serve = serve
        self._connections = connections
        self._context = context
        self._limit = limit
        self._handshake_s = handshake_s
        self._peer = peer
        self.tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Accept connections until cancelled; open connections continue."""
        self._listener.setblocking(False)
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, address = await loop.sock_accept(self._listener)
            except OSError:
                self._connections.shed()
                await asyncio.sleep(_AGAIN_S)
                continue
            self._begin(accepted, self._peer(accepted, str(address[0])))
            await asyncio.sleep(0)  # a connection that waits already is accepted without a pause for others

    def _begin(self, accepted: socket, peer: str) -> None:
        def close() -> None:
            """Shut the socket down. Cancelling the task instead would leave the socket of an unfinished handshake open."""
            with contextlib.suppress(OSError):  # it is closed
                accepted.shutdown(SHUT_RDWR)

        connection = self._connections.open(peer, close)
        if connection is None:
            accepted.close()
            return
        task = asyncio.get_running_loop().create_task(self._connected(accepted, connection))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def end(self, within_s: float) -> None:
        """Close the connections whose request is not complete, and wait up to ``within_s`` seconds for the others."""
        while self._connections.shed():
            pass
        if self.tasks:
            await asyncio.wait(self.tasks, timeout=within_s)

    async def _connected(self, accepted: socket, connection: Connection) -> None:
        transport: asyncio.Transport | None = None
        loop = asyncio.get_running_loop()
        context = self._context()
        reader = asyncio.StreamReader(self._limit, loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        try:
            transport, _ = await loop.connect_accepted_socket(
                lambda: protocol,
                accepted,
                ssl=context,
                ssl_handshake_timeout=self._handshake_s if context is not None else None,
            )
            await self._serve(reader, asyncio.StreamWriter(transport, protocol, reader, loop), connection)
        except SILENT:
            pass
        finally:
            self._connections.ended(connection)
            if transport is not None:
                transport.abort()
