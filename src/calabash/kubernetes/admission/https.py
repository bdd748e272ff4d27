"""A small HTTPS server for one kind of question: a bounded POST that is answered from memory.

Only what API servers send is understood: HTTP/1.1 with a Content-Length, connections kept and used again. Whoever sends
anything else, too much, or too slowly is hung up on, and nobody holds more than a connection. The certificate is read from a
context that may be loaded again at any time: connections that stand are not touched, new ones get the new one.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus
from socket import socket

HEAD_BYTES_MAX = 16 * 1024
BODY_BYTES_MAX = 8 << 20  # twice what an API server takes for one object, for reviews carry two
CONNECTIONS_MAX = 512
HANDSHAKE_S = 5.0
BODY_S = 5.0
WRITE_S = 5.0
IDLE_S = 120.0  # API servers keep connections for 90 s

Handler = Callable[["HttpQuestion"], Awaitable["HttpReply"]]


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpQuestion:
    """A request with its whole body; ``path`` without a query."""

    method: str
    path: str
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpReply:
    """What is answered."""

    status: HTTPStatus = HTTPStatus.OK
    body: bytes = b""
    content_type: str = "application/json"


class _RefusedError(Exception):
    """The other end does not speak as it should; answered once, then hung up."""

    def __init__(self, status: HTTPStatus) -> None:
        super().__init__(status.phrase)
        self.status = status


class HttpsServer:
    """Serves a listening socket from a thread of its own until it is stopped.

    Args:
        listener: bound and listening; it is closed at the end.
        context: the certificate; None speaks plain HTTP, for tests.
        handler: called for one request after the other of a connection; what it raises is answered with 500.
        report: told of faults of the handler.
    """

    def __init__(
        self,
        listener: socket,
        context: ssl.SSLContext | None,
        handler: Handler,
        *,
        report: Callable[[Exception], None] | None = None,
    ) -> None:
        self._listener = listener
        self._context = context
        self._handler = handler
        self._report = report
        self._connections: set[asyncio.Task[None]] = set()
        self._idle: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="admission", daemon=True)

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._listener.getsockname()[1])

    def start(self) -> None:
        """Begin; returns when questions are taken."""
        self._thread.start()
        self._started.wait(10)

    def stop(self, within_s: float = 5.0) -> None:
        """Take no more questions, let those that are being answered finish, end."""
        if self._loop is not None and self._stopping is not None:
            with contextlib.suppress(RuntimeError):  # it has ended by itself
                self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(within_s)

    async def _serve(self) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(
            self._connected,
            sock=self._listener,
            ssl=self._context,
            limit=HEAD_BYTES_MAX,
            backlog=1024,
            ssl_handshake_timeout=HANDSHAKE_S if self._context is not None else None,
        )
        self._started.set()
        await self._stopping.wait()
        server.close()
        for task in list(self._idle):
            task.cancel()
        if self._connections:
            await asyncio.wait(self._connections, timeout=2)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            if len(self._connections) <= CONNECTIONS_MAX:
                await self._converse(reader, writer, task)
        except (OSError, EOFError, TimeoutError, asyncio.LimitOverrunError, asyncio.CancelledError):
            pass  # gone, silent, too slow, or we are to end
        finally:
            self._connections.discard(task)
            self._idle.discard(task)
            writer.transport.abort()

    async def _converse(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, task: asyncio.Task[None]
    ) -> None:
        while self._stopping is not None and not self._stopping.is_set():
            self._idle.add(task)
            async with asyncio.timeout(IDLE_S):
                head = await reader.readuntil(b"\r\n\r\n")
            self._idle.discard(task)
            try:
                question, keep = await _read(head, reader)
                reply = await self._reply(question)
            except _RefusedError as refused:
                reply, keep = HttpReply(status=refused.status), False
            await _write(writer, reply, keep=keep)
            if not keep:
                return

    async def _reply(self, question: HttpQuestion) -> HttpReply:
        try:
            return await self._handler(question)
        except Exception as error:
            if self._report is not None:
                self._report(error)
            return HttpReply(status=HTTPStatus.INTERNAL_SERVER_ERROR)


async def _read(head: bytes, reader: asyncio.StreamReader) -> tuple[HttpQuestion, bool]:
    """The request that begins with ``head``, and whether the connection is to be kept."""
    lines = head.decode("latin-1").split("\r\n")
    words = lines[0].split(" ")
    if len(words) != 3 or words[2] not in ("HTTP/1.1", "HTTP/1.0"):
        raise _RefusedError(HTTPStatus.BAD_REQUEST)
    fields: dict[str, str] = {}
    for line in lines[1:-2]:
        name, colon, value = line.partition(":")
        if not colon or name != name.strip() or (name.lower() in fields and name.lower() == "content-length"):
            raise _RefusedError(HTTPStatus.BAD_REQUEST)
        fields[name.lower()] = value.strip()
    if "transfer-encoding" in fields:
        raise _RefusedError(HTTPStatus.LENGTH_REQUIRED)
    length = fields.get("content-length", "0")
    if not length.isascii() or not length.isdigit() or len(length) > 12:
        raise _RefusedError(HTTPStatus.BAD_REQUEST)
    if int(length) > BODY_BYTES_MAX:
        raise _RefusedError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
    async with asyncio.timeout(BODY_S):
        body = await reader.readexactly(int(length))
    keep = words[2] == "HTTP/1.1" and fields.get("connection", "").lower() != "close"
    return HttpQuestion(method=words[0], path=words[1].partition("?")[0], body=body), keep


async def _write(writer: asyncio.StreamWriter, reply: HttpReply, *, keep: bool) -> None:
    head = (
        f"HTTP/1.1 {reply.status.value} {reply.status.phrase}\r\nContent-Type: {reply.content_type}\r\n"
        f"Content-Length: {len(reply.body)}\r\nConnection: {'keep-alive' if keep else 'close'}\r\n\r\n"
    )
    writer.write(head.encode() + reply.body)
    async with asyncio.timeout(WRITE_S):
        await writer.drain()
        if not keep:
            writer.close()
            await writer.wait_closed()
