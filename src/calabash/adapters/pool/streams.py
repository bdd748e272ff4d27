"""Asynchronous client of the pool's API with connections that are kept open; answers are passed on as bytes.

HTTP/1.1 with content length only. Cancelling a call closes its connection, upon which the server cancels the request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import calabash
from calabash.adapters.pool.asynchronous import AsyncPoolClient
from calabash.adapters.pool.request_slots import Places
from calabash.adapters.pool.wire import ANSWER_BYTES_MAX, CHUNK_BYTES, broken, coded, decode_content
from calabash.api.endpoints import VERSION_HEADER
from calabash.model.errors import CalabashError, Reason, cause
from calabash.transport.http1_client import HEAD_BYTES_MAX, HttpError, body_length, parse_head, write_request

KEPT_MAX = 64  # connections that wait for the next question
CONNECTIONS_MAX = 256
SHARE_MAX = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolAnswer:
    """Answer of the pool; names of headers are lower-case."""

    status: int
    content: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


class PoolStreams(AsyncPoolClient):
    """Client of the pool behind a Unix socket; used by one event loop.

    Args:
        path: the socket.
        connections: largest number of open requests.
        share: largest number of open requests of one holder.
    """

    def __init__(self, path: str, *, connections: int = CONNECTIONS_MAX, share: int = SHARE_MAX) -> None:
        self._path = path
        self._places = Places(connections, share)
        self._kept: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def call(self, method: str, path: str, body: Any = None, *, timeout_s: float = 30.0) -> Any:
        """Return the decoded answer. Raises CalabashError with the pool's reason, or POOL_DOWN, or TIMEOUT."""
        answer = await self.ask(method, path, coded(body), timeout_s=timeout_s)
        return decode_content(answer.status, answer.content, who="the pool")

    async def ask(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        token: str = "",
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 30.0,
        holder: str = "",
    ) -> PoolAnswer:
        """Return the answer with any status. Raises CalabashError: POOL_DOWN, TIMEOUT, USER_LIMIT, BAD_REQUEST.

        Args:
            holder: name of the credential whose limit of unanswered requests this request counts against; "" for none.
        """
        bearer = {"authorization": f"Bearer {token}"} if token else {}
        question = _question(method, path, body, {**bearer, **(headers or {})})
        try:
            async with asyncio.timeout(timeout_s), self._places.place(holder):
                return await self._exchange(question, again=method == "GET")
        except TimeoutError:
            raise CalabashError(
                f"the pool did not answer {method} {path} within {timeout_s:g}s", reason=Reason.TIMEOUT
            ) from None
        except OSError as error:
            raise CalabashError(
                f"no pool answers at {self._path} ({cause(error)})",
                reason=Reason.POOL_DOWN,
                hint="start it with `calabash up`; programs that run are not affected",
            ) from None

    def close(self) -> None:
        """Close all kept connections."""
        while self._kept:
            self._kept.pop()[1].transport.abort()

    async def _exchange(self, question: bytes, *, again: bool) -> PoolAnswer:
        """Send a request and return its answer.

        Args:
            again: True if the request may be sent twice. A kept connection is used only then: the server may close a
                kept connection at any moment, and the request must then be sent again on a new connection.
        """
        while again and self._kept:
            reader, writer = self._kept.pop()
            if reader.at_eof() or writer.transport.is_closing():
                writer.transport.abort()
                continue
            answer = await self._asked(reader, writer, question, fresh=False)
            if answer is not None:
                return answer
        reader, writer = await asyncio.open_unix_connection(self._path, limit=HEAD_BYTES_MAX)
        answer = await self._asked(reader, writer, question, fresh=True)
        assert answer is not None
        return answer

    async def _asked(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, question: bytes, *, fresh: bool
    ) -> PoolAnswer | None:
        """Send a request on a connection and return the answer.

        Returns None if the server had closed a kept connection before it received the request, so that the request can
        be sent again.

        Args:
            fresh: True for a new connection. If the server closes it without an answer, an error is raised.
        """
        kept = False
        try:
            writer.write(question)
            await writer.drain()
            first = await reader.read(1)
            if not first and not fresh:
                return None
            answer = await _read(first, reader)
            kept = answer.headers.get("connection", "").lower() != "close" and len(self._kept) < KEPT_MAX
            if kept:
                self._kept.append((reader, writer))
            return answer
        except (BrokenPipeError, ConnectionResetError):
            if fresh:
                raise
            return None
        finally:
            if not kept:
                writer.transport.abort()


def _question(method: str, path: str, body: bytes, headers: Mapping[str, str]) -> bytes:
    """Return a request as bytes. Raises BAD_REQUEST if it has characters that are not allowed, such as newlines."""
    try:
        return write_request(method, path, {"Host": "pool", VERSION_HEADER: calabash.__version__, **headers}, body)
    except ValueError:
        raise CalabashError(
            f"{method} {path!r:.200} is not a valid request: it has characters that are not allowed",
            reason=Reason.BAD_REQUEST,
            hint="percent-encode names in the address",
        ) from None


async def _read(first: bytes, reader: asyncio.StreamReader) -> PoolAnswer:
    """Return one answer, of which the byte ``first`` has been read already. Raises POOL_DOWN if it is not complete."""
    try:
        head = first + await reader.readuntil(b"\r\n\r\n")
        status, headers, _ = parse_head(head[:-4])
        length = body_length(headers)
        if length is None:
            raise HttpError("the answer has no length")
        if length > ANSWER_BYTES_MAX:
            raise broken("the pool", f"its answer has {length} bytes")
        content = bytearray()
        while len(content) < length:
            chunk = await reader.read(min(CHUNK_BYTES, length - len(content)))
            if not chunk:
                raise broken("the pool", "it ended the connection in the middle of an answer")
            content += chunk
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, HttpError):
        raise broken("the pool", "it ended the connection without a whole answer" if first else "it hung up") from None
    return PoolAnswer(status=status, content=bytes(content), headers=headers)
