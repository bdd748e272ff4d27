"""HTTP/1.1 as far as API servers and kube-scheduler speak it: strict, bounded in size and time.

A question has a body of a known length, or none; connections are kept and used again. Whoever sends anything else, or too
much, is answered once and hung up on; whoever is too slow is hung up on. How servers live and end is their own affair.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from http import HTTPStatus

_LENGTH_DIGITS_MAX = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What one client may cost.

    Args:
        head_bytes: of the first line and all fields; servers give it to their streams as ``limit``.
        connections: at a time.
        idle_s: until the next question has begun and its head is there; API servers keep connections for 90 s.
    """

    head_bytes: int = 16 << 10
    body_bytes: int = 8 << 20
    connections: int = 512
    idle_s: float = 120.0
    body_s: float = 5.0
    write_s: float = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpQuestion:
    """A request with its whole body; ``path`` without the query, ``authorization`` what it shows of who asks."""

    method: str
    path: str
    body: bytes = b""
    query: str = ""
    authorization: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpReply:
    """What is answered."""

    status: HTTPStatus = HTTPStatus.OK
    body: bytes = b""
    content_type: str = "application/json"


class RefusedError(Exception):
    """The other end does not speak as it should; answered once, then hung up."""

    def __init__(self, status: HTTPStatus) -> None:
        super().__init__(status.phrase)
        self.status = status


async def read_head(reader: asyncio.StreamReader, bounds: Bounds) -> bytes:
    """All before the body. Raises what streams raise when it does not come, or is too long."""
    async with asyncio.timeout(bounds.idle_s):
        return await reader.readuntil(b"\r\n\r\n")


async def read_question(head: bytes, reader: asyncio.StreamReader, bounds: Bounds) -> tuple[HttpQuestion, bool]:
    """The question that begins with ``head``, and whether the connection is to be kept. Raises RefusedError."""
    lines = head.decode("latin-1").split("\r\n")
    words = lines[0].split(" ")
    if len(words) != 3 or words[2] not in ("HTTP/1.1", "HTTP/1.0"):
        raise RefusedError(HTTPStatus.BAD_REQUEST)
    fields = _fields(lines[1:-2])
    length = _length(fields, bounds.body_bytes)
    body = b""
    if length:
        async with asyncio.timeout(bounds.body_s):
            body = await reader.readexactly(length)
    keep = words[2] == "HTTP/1.1" and fields.get("connection", "").lower() != "close"
    path, _, query = words[1].partition("?")
    shown = fields.get("authorization", "")
    return HttpQuestion(method=words[0], path=path, body=body, query=query, authorization=shown), keep


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
    """Of the body."""
    if "transfer-encoding" in fields:
        raise RefusedError(HTTPStatus.LENGTH_REQUIRED)
    length = fields.get("content-length", "0")
    if not length.isascii() or not length.isdigit() or len(length) > _LENGTH_DIGITS_MAX:
        raise RefusedError(HTTPStatus.BAD_REQUEST)
    if int(length) > most:
        raise RefusedError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
    return int(length)


async def write_reply(writer: asyncio.StreamWriter, reply: HttpReply, bounds: Bounds, *, keep: bool) -> None:
    """Answer; closes the connection unless it is to be kept. Raises TimeoutError when nobody reads it."""
    head = (
        f"HTTP/1.1 {reply.status.value} {reply.status.phrase}\r\nContent-Type: {reply.content_type}\r\n"
        f"Content-Length: {len(reply.body)}\r\nConnection: {'keep-alive' if keep else 'close'}\r\n\r\n"
    )
    writer.write(head.encode() + reply.body)
    async with asyncio.timeout(bounds.write_s):
        await writer.drain()
        if not keep:
            writer.close()
            await writer.wait_closed()
