"""HTTP/1.1 server side for API servers and kube-scheduler: strict, bounded in size and time.

A request has a body of a known length, or none; connections are kept open. A client that sends anything else, or too
much, is answered once and disconnected; a client that is too slow is disconnected. Servers manage their own start and
end.

uvicorn is not used here. Even without an application framework it would add 6 MiB of memory, and 43 ms of processor
time at the start, to each program. This module and ``listening`` add 0.6 MiB and 11 ms. uvicorn also has no limit for
the bodies of all requests together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from http import HTTPStatus

from calabash.transport.connections import Activity, Connection, Connections

_LENGTH_DIGITS_MAX = 12
_PART_BYTES = 64 << 10
_RETRY_AFTER_S = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Limits of a server.

    Args:
        head_bytes: bytes of a request's head (request line and header fields); servers pass it to their streams as
            ``limit``.
        body_bytes: bytes of the body of one request; the default is twice what an API server takes for one object,
            because reviews carry two.
        held_bytes: bytes of all bodies that are in memory at the same time.
        connections: open connections of all peers together.
        per_peer: open connections of one peer.
        first_s: seconds until the first byte of a connection's first request.
        idle_s: seconds until the first byte of a later request; API servers keep idle connections for 90 s.
        head_s: seconds from the first byte of a request until its head is complete.
        body_s: seconds from the end of the head until the body is complete.
        write_s: seconds until the client has accepted a reply.
    """

    head_bytes: int = 16 << 10
    body_bytes: int = 8 << 20
    held_bytes: int = 32 << 20
    connections: int = 256
    per_peer: int = 128
    first_s: float = 5.0
    idle_s: float = 120.0
    head_s: float = 5.0
    body_s: float = 5.0
    write_s: float = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpQuestion:
    """Request with its whole body.

    Args:
        path: path without the query.
        authorization: value of the Authorization header.
    """

    method: str
    path: str
    body: bytes = b""
    query: str = ""
    authorization: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpReply:
    """Reply to a request.

    Args:
        headers: further header fields.
        closes: True if the connection is closed after the reply.
    """

    status: HTTPStatus = HTTPStatus.OK
    body: bytes = b""
    content_type: str = "application/json"
    retry_after_s: int = 0
    headers: tuple[tuple[str, str], ...] = ()
    closes: bool = False


class RefusedError(Exception):
    """Raised for a request that is refused with a status and an empty body; the connection is then closed."""

    def __init__(self, status: HTTPStatus, *, retry_after_s: int = 0) -> None:
        super().__init__(status.phrase)
        self.status = status
        self.retry_after_s = retry_after_s

    @property
    def reply(self) -> HttpReply:
        return HttpReply(status=self.status, retry_after_s=self.retry_after_s)


Take = Callable[[int], bool]
"""Hold so many bytes more in memory; False: there are too many."""


Answer = Callable[[HttpQuestion, asyncio.StreamReader], Awaitable[HttpReply | None]]
"""Returns the reply to a request; None if the client has disconnected. The reader has the bytes after the request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """Requests of connections: each connection's requests are read and answered one after the other.

    Args:
        connections: table of the open connections, which is told what each connection does.
        bounds: limits of sizes and times.
        answer: answers one request.
        stopped: returns True if no more requests are read.
    """

    connections: Connections
    bounds: Bounds
    answer: Answer
    stopped: Callable[[], bool] = lambda: False

    async def run(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: Connection) -> None:
        """Answer the requests of one connection until it is to be closed.

        Raises TimeoutError, LimitOverrunError, EOFError or OSError if the client is too slow, sends too much, or
        disconnects.
        """
        wait_s = self.bounds.first_s
        while not self.stopped():
            first = await read_first(reader, wait_s)
            if not await self._one(first, reader, writer, connection):
                return
            self.connections.set_activity(connection, Activity.IDLE)
            wait_s = self.bounds.idle_s

    async def _one(
        self, first: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: Connection
    ) -> bool:
        """Answer one request; return True if the connection stays open for another one.

        Args:
            first: first byte of the request, which was read already.
        """
        table, bounds = self.connections, self.bounds
        table.set_activity(connection, Activity.ASKING)
        reply: HttpReply | None
        try:
            head = await read_head(first, reader, bounds)
            question, keep = await read_question(head, reader, bounds, lambda count: table.take(connection, count))
            table.set_activity(connection, Activity.BUSY)
            reply = await self.answer(question, reader)
        except RefusedError as refused:
            reply, keep = refused.reply, False
        table.release(connection)
        if reply is None:
            return False
        keep = keep and not reply.closes
        await write_reply(writer, reply, bounds, keep=keep)
        return keep


async def read_first(reader: asyncio.StreamReader, wait_s: float) -> bytes:
    """Return the first byte of a request. Raises TimeoutError, or IncompleteReadError if the client disconnects."""
    async with asyncio.timeout(wait_s):
        return await reader.readexactly(1)


async def read_head(first: bytes, reader: asyncio.StreamReader, bounds: Bounds) -> bytes:
    """Return the head of a request, with the byte ``first`` that was read before and the empty line at its end.

    Raises RefusedError, TimeoutError, LimitOverrunError if the head is too long, IncompleteReadError if the client
    disconnects.
    """
    if first == b"\r":
        raise RefusedError(HTTPStatus.BAD_REQUEST)
    async with asyncio.timeout(bounds.head_s):
        return first + await reader.readuntil(b"\r\n\r\n")


async def read_question(
    head: bytes, reader: asyncio.StreamReader, bounds: Bounds, take: Take = lambda _: True
) -> tuple[HttpQuestion, bool]:
    """Return the request that begins with ``head``, and True if the connection stays open after it. Raises RefusedError.

    Args:
        take: reserves memory for so many more bytes of the body; returns False if there is none.
    """
    lines = head.decode("latin-1").split("\r\n")
    words = lines[0].split(" ")
    if len(words) != 3 or words[2] not in ("HTTP/1.1", "HTTP/1.0"):
        raise RefusedError(HTTPStatus.BAD_REQUEST)
    fields = _fields(lines[1:-2])
    length = _length(fields, bounds.body_bytes)
    body = await _body(reader, length, bounds, take) if length else b""
    keep = words[2] == "HTTP/1.1" and fields.get("connection", "").lower() != "close"
    path, _, query = words[1].partition("?")
    shown = fields.get("authorization", "")
    return HttpQuestion(method=words[0], path=path, body=body, query=query, authorization=shown), keep


async def _body(reader: asyncio.StreamReader, length: int, bounds: Bounds, take: Take) -> bytes:
    """Return the whole body. Memory is reserved for bytes that have arrived, not for the length that the client announces."""
    parts: list[bytes] = []
    missing = length
    async with asyncio.timeout(bounds.body_s):
        while missing:
            part = await reader.read(min(missing, _PART_BYTES))
            if not part:
                raise EOFError
            if not take(len(part)):
                raise RefusedError(HTTPStatus.SERVICE_UNAVAILABLE, retry_after_s=_RETRY_AFTER_S)
            parts.append(part)
            missing -= len(part)
    return b"".join(parts)


def _fields(lines: list[str]) -> dict[str, str]:
    fields: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        key = name.lower()
        if not colon or name != name.strip() or (key == "content-length" and key in fields):
            raise RefusedError(HTTPStatus.BAD_REQUEST)
        fields[key] = value.strip()
    return fields


def _length(fields: dict[str, str], most: int) -> int:
    """Return the length of the body. Raises RefusedError."""
    if "transfer-encoding" in fields:
        raise RefusedError(HTTPStatus.LENGTH_REQUIRED)
    length = fields.get("content-length", "0")
    if not length.isascii() or not length.isdigit() or len(length) > _LENGTH_DIGITS_MAX:
        raise RefusedError(HTTPStatus.BAD_REQUEST)
    if int(length) > most:
        raise RefusedError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
    return int(length)


async def write_reply(writer: asyncio.StreamWriter, reply: HttpReply, bounds: Bounds, *, keep: bool) -> None:
    """Write the reply, and close the connection unless ``keep`` is true.

    Raises TimeoutError if the client does not read.
    """
    later = f"Retry-After: {reply.retry_after_s}\r\n" if reply.retry_after_s else ""
    later += "".join(f"{name}: {value}\r\n" for name, value in reply.headers)
    head = (
        f"HTTP/1.1 {reply.status.value} {reply.status.phrase}\r\nContent-Type: {reply.content_type}\r\n{later}"
        f"Content-Length: {len(reply.body)}\r\nConnection: {'keep-alive' if keep else 'close'}\r\n\r\n"
    )
    writer.write(head.encode() + reply.body)
    async with asyncio.timeout(bounds.write_s):
        await writer.drain()
        if not keep:
            writer.close()
            await writer.wait_closed()
