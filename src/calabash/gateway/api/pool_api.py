"""Typed client of the pool for one visitor: all requests carry that visitor's token or session."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, TypeVar
from urllib.parse import urlencode

import msgspec

from calabash.adapters.pool.streams import PoolAnswer, PoolStreams
from calabash.adapters.pool.wire import broken, refusal
from calabash.api.gateway import SESSION_HEADER
from calabash.api.route import Route
from calabash.model.errors import CalabashError, Reason

PAGES_MAX = 50  # pages of a thousand items each; more than the console shows
SIGNED_OUT = 401
AT_ONCE = 8  # concurrent requests to the pool for one visitor

Shape = TypeVar("Shape", bound=msgspec.Struct)


class PoolOfVisitor:
    """Client of the pool with a visitor's token, or with the gateway's credential for a session.

    Args:
        pool: connections to the pool.
        token: token of the visitor, or the gateway's own credential if ``session`` is set.
        session: ID of the console session of the visitor; "" for a visitor with a token.
        origin: headers with the address of the client, for the pool's audit log.
        holder: name of the credential for which the requests count in the limit of open requests; "" for none.
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

    async def get(self, route: Route[Shape], *values: str, query: Mapping[str, str] | None = None) -> Shape:
        """Return the decoded reply to a GET. Raises CalabashError with the pool's reason.

        Args:
            values: values of the variable segments of the route's path.
            query: parameters of the query string.
        """
        path = route.endpoint.at(*values)
        return decoded(await self._ask("GET", f"{path}?{urlencode(query)}" if query else path), route.reply)

    async def pages(self, route: Route[Any], *values: str, query: Mapping[str, str] | None = None) -> list[Any]:
        """Return the items of a list, read in pages, at most PAGES_MAX pages; arguments as for ``get``."""
        found: list[Any] = []
        after = ""
        for _ in range(PAGES_MAX):
            page = await self.get(route, *values, query={**(query or {}), **({"after": after} if after else {})})
            found += page.items
            after = getattr(page, "next", "")
            if not after:
                break
        return found

    async def send(self, method: str, path: str, body: Any, shape: type[Shape]) -> Shape:
        """Send a change and return the reply, decoded to ``shape``. Raises CalabashError with the pool's reason."""
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
    """Error for a session that is unknown to the pool or has ended."""


def decoded(answer: PoolAnswer, shape: type[Shape]) -> Shape:
    """Decode the body of a reply.

    Raises:
        SignedOutError: if the session has ended.
        CalabashError: with the pool's reason if it refused the request.
    """
    if answer.status < 400:
        try:
            return msgspec.json.decode(answer.content, type=shape)
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise broken("the pool", f"its reply cannot be decoded: {error}") from None
    try:
        said = msgspec.json.decode(answer.content)
    except msgspec.DecodeError:
        said = {}
    refused = refusal(said, status=answer.status, who="the pool")
    if answer.status == SIGNED_OUT:
        raise SignedOutError(refused.message, reason=Reason.NOT_AUTHENTICATED, hint=refused.hint)
    raise refused
