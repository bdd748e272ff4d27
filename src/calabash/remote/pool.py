"""What the broker asks of its pool: HTTP on the pool's socket, as any front end does, without a thread that waits.

Hanging up withdraws what is waited for: that is what cancelling a call does.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, Protocol

from calabash.model.errors import CalabashError, Reason
from calabash.remote.questions import decode_answer, write_question

_ANSWER_BYTES_MAX = 64 << 20


class PoolDoor(Protocol):
    """A pool's API."""

    async def call(self, method: str, path: str, body: Any = None, *, timeout_s: float = 30.0) -> Any:
        """The decoded answer. Raises CalabashError with the pool's reason, or POOL_DOWN, or TIMEOUT."""


class PoolSocket:
    """The pool behind a Unix socket."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def call(self, method: str, path: str, body: Any = None, *, timeout_s: float = 30.0) -> Any:
        data = b"" if body is None else json.dumps(body).encode()
        try:
            async with asyncio.timeout(timeout_s):
                answer = await self._exchange(write_question(method, path, data))
        except TimeoutError:
            raise CalabashError(
                f"the pool did not answer {method} {path} within {timeout_s:g}s", reason=Reason.TIMEOUT
            ) from None
        except OSError as error:
            raise CalabashError(
                f"no pool answers at {self._path} ({error})",
                reason=Reason.POOL_DOWN,
                hint="start it on the server with `calabash up`; programs that run are not affected",
            ) from None
        return decode_answer(answer, who="the pool")

    async def _exchange(self, question: bytes) -> bytes:
        reader, writer = await asyncio.open_unix_connection(str(self._path))
        try:
            writer.write(question)
            await writer.drain()
            answer = bytearray()
            while chunk := await reader.read(1 << 16):
                answer += chunk
                if len(answer) > _ANSWER_BYTES_MAX:
                    raise ConnectionError("its answer is too long")
            return bytes(answer)
        finally:
            writer.transport.abort()


async def items(pool: PoolDoor, path: str) -> list[dict[str, Any]]:
    """All of a list, page by page."""
    found: list[dict[str, Any]] = []
    after = ""
    while True:
        page = await pool.call("GET", f"{path}?after={after}" if after else path)
        found += page["items"]
        after = page.get("next", "")
        if not after:
            return found
