"""Small HTTP/1.1 server for bounded requests, with or without TLS.

It has an event loop in a thread of its own, so that it answers while the rest of the program is busy. Connections are
bounded by ``transport.connections``: no client holds more than its share of them, and the longest idle one is closed for
a new one. Each step of a connection has its own short time limit: handshake, first byte, head, body, reply. The bodies of
all requests together are bounded as well; a request beyond that is answered with 503.

After a reply with status 503 the connection is closed, because a new connection may reach another replica.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from http import HTTPStatus
from socket import socket
from typing import Any

import structlog

from calabash.transport.connections import Connection, Connections, Peer
from calabash.transport.http1 import Bounds, Conversation, HttpQuestion, HttpReply
from calabash.transport.listening import Acceptor, address_of_socket, listen, streams

log = structlog.get_logger(__name__)

BOUNDS = Bounds()
START_S = 10.0
_PATH_MAX = 128  # characters of a path in the log

Handler = Callable[[HttpQuestion], Awaitable[HttpReply]]
Admits = Callable[[Mapping[str, Any] | None], bool]


class SmallServer:
    """HTTP server with an event loop in a thread of its own.

    Args:
        handler: called for the requests of a connection, one after the other; an exception is logged and answered with
            status 500.
        at: host and port at which ``start`` listens, as in ``listen``; or a socket that is bound and listening already.
            ``stop`` closes the socket.
        name: name of the server's thread.
        tls: TLS context with the server's certificate; None for plain HTTP.
        admits: called with the client's certificate, as ``ssl`` decodes it; returns True if the client is permitted. None:
            all clients are permitted.
        peer: returns the peer of a connection; see ``Peer``.
        healthy: called every ``every_s`` seconds. While it returns False, the server does not listen and has no
            connections, so that clients fail at once and need not wait for a timeout. Needs ``at`` as host and port.
        cancels: True if the handler is cancelled when the client disconnects before the reply.
        ending_s: seconds for which ``stop`` lets running requests go on.
        bounds: limits of connections, sizes and times.
    """

    def __init__(
        self,
        handler: Handler,
        at: socket | tuple[str, int],
        *,
        name: str,
        tls: ssl.SSLContext | None = None,
        admits: Admits | None = None,
        peer: Peer = lambda _, address: address,
        healthy: Callable[[], bool] | None = None,
        every_s: float = 1.0,
        cancels: bool = False,
        ending_s: float = 2.0,
        bounds: Bounds = BOUNDS,
    ) -> None:
        self._handler = handler
        self._listener = at if isinstance(at, socket) else None
        self.address = address_of_socket(at) if isinstance(at, socket) else at
        self._host = self.address[0]
        self._tls = tls
        self._admits = admits
        self._healthy = healthy
        self._every_s = every_s
        self._ending_s = ending_s
        self._connections = Connections(
            most=bounds.connections, per_peer=bounds.per_peer, held_bytes_max=bounds.held_bytes, peer=peer
        )
        self._answer = self._unless_gone if cancels else self._handled
        self._stopping = asyncio.Event()
        self._conversation = Conversation(
            connections=self._connections, bounds=bounds, answer=self._reply, stopped=self._stopping.is_set
        )
        self._handle = streams(self._converse, self._connections, context=lambda: self._tls, limit=bounds.head_bytes)
        self._acceptor: Acceptor | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name=name, daemon=True)

    @property
    def port(self) -> int:
        """Port at which the server listens; 0 before ``start`` if any free port was asked for."""
        return self.address[1]

    def start(self) -> None:
        """Listen and start the thread; return when requests are accepted. Raises OSError if the address is not available."""
        self._listen()
        self._thread.start()
        self._started.wait(START_S)

    def stop(self, within_s: float = 5.0) -> None:
        """Accept no more requests, and return when the thread has ended or ``within_s`` seconds are over."""
        self.call_soon(self._stopping.set)
        if self._thread.ident is not None:
            self._thread.join(within_s)
        elif self._listener is not None:
            self._listener.close()

    def renew(self, tls: ssl.SSLContext) -> None:
        """Use this TLS context, which has a renewed certificate, for new connections; callable from any thread.

        The context in use is replaced and not modified, because a handshake could see a half-made change.
        """
        self._tls = tls

    def call_soon(self, callback: Callable[[], object]) -> None:
        """Call a function in the server's event loop; does nothing if the server does not run."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # it is closed
                self._loop.call_soon_threadsafe(callback)

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _listen(self) -> socket:
        """Return the listening socket, and open it if there is none. Raises OSError."""
        if self._listener is None:
            self._listener = listen(self._host, self.port)
            self.address = address_of_socket(self._listener)
        return self._listener

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._accept()
        self._started.set()
        while not await self._stops_within(self._every_s if self._healthy is not None else None):
            healthy = self._healthy is None or self._healthy()
            if not healthy:
                await self._hang_up(0.0)
            elif self._acceptor is None:
                try:
                    self._accept()
                except OSError as error:
                    log.warning("a server cannot listen again yet", server=self._thread.name, error=str(error))
        await self._hang_up(self._ending_s)

    async def _stops_within(self, wait_s: float | None) -> bool:
        """Wait until the server is stopped; return False if it is not within ``wait_s`` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._stopping.wait()
        return self._stopping.is_set()

    def _accept(self) -> None:
        self._acceptor = Acceptor(self._listen(), self._handle, self._connections)
        self._acceptor.start()

    async def _hang_up(self, within_s: float) -> None:
        """Close all connections and the listening socket; requests that are being answered have ``within_s`` seconds."""
        if self._acceptor is not None:
            await self._acceptor.end(within_s)
        self._acceptor = self._listener = None

    async def _converse(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: Connection
    ) -> None:
        if self._admits is not None:
            if not self._admits(writer.get_extra_info("peercert")):
                return
            connection.proven = True
        await self._conversation.run(reader, writer, connection)

    async def _reply(self, question: HttpQuestion, reader: asyncio.StreamReader) -> HttpReply | None:
        try:
            reply = await self._answer(question, reader)
        except Exception:
            log.exception("a request failed", server=self._thread.name, path=question.path[:_PATH_MAX])
            return HttpReply(status=HTTPStatus.INTERNAL_SERVER_ERROR)
        if reply is not None and reply.status == HTTPStatus.SERVICE_UNAVAILABLE:
            return replace(reply, closes=True)
        return reply

    async def _handled(self, question: HttpQuestion, _: asyncio.StreamReader) -> HttpReply | None:
        return await self._handler(question)

    async def _unless_gone(self, question: HttpQuestion, reader: asyncio.StreamReader) -> HttpReply | None:
        """Return the handler's reply; cancel the handler and return None if the client disconnects first."""
        answer = asyncio.ensure_future(self._handler(question))
        tasks: list[asyncio.Future[Any]] = [answer]
        try:
            await asyncio.sleep(0)
            if not answer.done():
                tasks.append(asyncio.ensure_future(reader.read(1)))  # nothing may come before the reply but the end
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            return answer.result() if answer.done() else None
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
