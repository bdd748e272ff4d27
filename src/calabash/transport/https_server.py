"""Small HTTPS server for bounded POST requests that are answered from memory.

Connections are bounded by ``transport.connections``: no client holds more than its share of them, and the longest idle
one is closed for a new one. Each step of a connection has its own short time limit: handshake, first byte, head, body,
reply. The bodies of all requests together are bounded as well; a request beyond that is answered with 503.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from socket import socket
from typing import Any

import structlog

from calabash.transport.connections import Connection, Connections
from calabash.transport.http1 import Bounds, Conversation, HttpQuestion, HttpReply
from calabash.transport.listening import Acceptor, streams

BOUNDS = Bounds(body_bytes=8 << 20)  # twice what an API server takes for one object, for reviews carry two
ENDING_S = 2.0
_PATH_MAX = 128

log = structlog.get_logger(__name__)

Handler = Callable[[HttpQuestion], Awaitable[HttpReply]]
Admits = Callable[[Mapping[str, Any] | None], bool]


class HttpsServer:
    """HTTPS server on a listening socket, with an event loop in a thread of its own.

    Args:
        listener: socket that is bound and listening; ``stop`` closes it.
        context: TLS context with the server's certificate; None for plain HTTP, for probes and tests.
        handler: called for the requests of a connection, one after the other. An exception is logged and answered with
            status 500.
        bounds: limits of connections, sizes and times.
        admits: called with the client's certificate, as ``ssl`` decodes it; returns True if the client is permitted. None:
            all clients are permitted.
    """

    def __init__(
        self,
        listener: socket,
        context: ssl.SSLContext | None,
        handler: Handler,
        *,
        bounds: Bounds = BOUNDS,
        admits: Admits | None = None,
    ) -> None:
        self._listener = listener
        self._context = context
        self._handler = handler
        self._admits = admits
        self._connections = Connections(
            most=bounds.connections, per_peer=bounds.per_peer, held_bytes_max=bounds.held_bytes
        )
        self._conversation = Conversation(
            connections=self._connections,
            bounds=bounds,
            answer=self._reply,
            stopped=lambda: self._stopping is None or self._stopping.is_set(),
        )
        handle = streams(self._converse, self._connections, context=lambda: self._context, limit=bounds.head_bytes)
        self._acceptor = Acceptor(listener, handle, self._connections)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="https", daemon=True)

    @property
    def port(self) -> int:
        """Port of the listening socket."""
        return int(self._listener.getsockname()[1])

    def start(self) -> None:
        """Start the thread; return when requests are accepted."""
        self._thread.start()
        self._started.wait(10)

    def stop(self, within_s: float = 5.0) -> None:
        """Accept no more requests, and return when the running ones have finished or ``within_s`` seconds are over."""
        if self._loop is not None and self._stopping is not None:
            with contextlib.suppress(RuntimeError):  # it has ended by itself
                self._loop.call_soon_threadsafe(self._stopping.set)
        if self._thread.ident is not None:
            self._thread.join(within_s)
        else:
            self._listener.close()

    def renew(self, context: ssl.SSLContext) -> None:
        """Use this TLS context, which has a renewed certificate, for new connections; callable from any thread.

        The context in use is replaced and not modified, because a handshake could see a half-made change.
        """
        self._context = context

    async def _serve(self) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        self._acceptor.start()
        self._started.set()
        await self._stopping.wait()
        await self._acceptor.end(ENDING_S)
        self._listener.close()

    async def _converse(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: Connection
    ) -> None:
        if self._admits is not None:
            if not self._admits(writer.get_extra_info("peercert")):
                return
            connection.proven = True
        await self._conversation.run(reader, writer, connection)

    async def _reply(self, question: HttpQuestion, _: asyncio.StreamReader) -> HttpReply:
        try:
            return await self._handler(question)
        except Exception as error:
            log.error("a question was not answered", path=question.path[:_PATH_MAX], error=repr(error))
            return HttpReply(status=HTTPStatus.INTERNAL_SERVER_ERROR)
