"""The pool as one visitor sees it: every question goes there with that visitor's token, and answers come typed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec

from calabash.adapters.pool.streams import PoolAnswer, PoolStreams
from calabash.adapters.pool.wire import broken, refusal
from calabash.api.gateway import SESSION_HEADER
from calabash.model.errors import CalabashError, Reason

PAGES_MAX = 50  # of a thousand items: more than any page shows
SIGNED_OUT = 401
AT_ONCE = 8  # requests to the pool for one request of a visitor

Shape = TypeVar("Shape")


class PoolOfVisitor:
    """Asks the pool with the token of a visitor, or for a session with the credential of the gateway.

    Args:
        token: of the visitor, or the gateway's own.
        session: the session for which the gateway asks.
        origin: headers that tell where the request comes from.
        holder: whose share of the open requests its requests count for.
    """

    def __init__(
        self,
        pool: PoolStreams,
        token: str,
        *,
        session: str = "",
        origin: Mapping[str, str] | None = None,
        holder: str = "",
    ) -> None:
        self._pool = pool
        self._token = token
        self._holder = holder
        self._at_once = asyncio.Semaphore(AT_ONCE)
        self._headers = {**(origin or {}), **({SESSION_HEADER: session} if session else {})}

    async def get(self, path: str, shape: type[Shape]) -> Shape:
        """One reply. Raises CalabashError with the pool's reason."""
        return decoded(await self._ask("GET", path), shape)

    async def pages(self, path: str, shape: type[Any]) -> list[Any]:
        """All items of a list, page by page, up to what a page can show."""
        found: list[Any] = []
        after = ""
        for _ in range(PAGES_MAX):
            page = await self.get(
                f"{path}{'&' if '?' in path else '?'}after={quote(after, safe='')}" if after else path, shape
            )
            found += page.items
            after = getattr(page, "next", "")
            if not after:
                break
        return found

    async def send(self, method: str, path: str, body: Any, shape: type[Shape]) -> Shape:
        """A change. Raises CalabashError with the pool's reason."""
        content = b"" if body is None else msgspec.json.encode(body)
        return decoded(await self._ask(method, path, content, timeout_s=60.0), shape)

    async def _ask(self, method: str, path: str, content: bytes = b"", *, timeout_s: float = 30.0) -> PoolAnswer:
        async with self._at_once:
            return await self._pool.ask(
                method,
                path,
                content,
                token=self._token,
                headers=self._headers,
                timeout_s=timeout_s,
                holder=self._holder,
            )


class SignedOutError(CalabashError):
    """The pool knows no such session, or no more."""


def decoded(answer: PoolAnswer, shape: type[Shape]) -> Shape:
    """The body of an answer. Raises CalabashError for a refusal, SignedOutError where a session has ended."""
    if answer.status < 400:
        try:
            return msgspec.json.decode(answer.content, type=shape)
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise broken("the pool", f"its answer is not understood: {error}") from None
    try:
        said = msgspec.json.decode(answer.content)
    except msgspec.DecodeError:
        said = {}
    refused = refusal(said, status=answer.status, who="the pool")
    if answer.status == SIGNED_OUT:
        raise SignedOutError(refused.message, reason=Reason.NOT_AUTHENTICATED, hint=refused.hint)
    raise refused
