"""Forward API requests to the pool unchanged, always with the token of the requesting user.

Replies to GET have an ETag, a hash of their content. A client that sends the ETag of the same content gets 304 without
a body.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from calabash.adapters.pool.streams import PoolStreams
from calabash.api import endpoints
from calabash.api.endpoints import VERSION_HEADER
from calabash.api.openapi import openapi
from calabash.api.routes import ROUTES
from calabash.api.tenancy import SessionOrder
from calabash.gateway.api.principals import Principals
from calabash.gateway.api.routing import RouteTable
from calabash.gateway.api.watch import Watchers
from calabash.gateway.serving.rate_limits import Buckets
from calabash.gateway.serving.request_guard import (
    Receive,
    Send,
    answer,
    body_of,
    forwarded_for,
    headers_of,
    refuse,
    too_many,
    while_connected,
)
from calabash.model.errors import CalabashError, Reason

WAIT_S = 3700.0  # a request for a slice may wait for an hour
_EXCHANGE = (
    endpoints.CREATE_SESSION.method,
    endpoints.CREATE_SESSION.path,
)  # authenticated by a login code instead of a token
_STATUS = {
    Reason.NOT_AUTHENTICATED: 401,
    Reason.NOT_PERMITTED: 403,
    Reason.TIMEOUT: 504,
    Reason.BAD_REQUEST: 400,
    Reason.USER_LIMIT: 429,
}
DOCUMENT, WATCHED, CHANGED = endpoints.DOCUMENT.path, endpoints.WATCH.path, endpoints.LIST_CHANGES.path
CHALLENGE = (b"www-authenticate", b'Bearer realm="calabash"')
_MORE = {401: [CHALLENGE], 429: [(b"retry-after", b"1")]}
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]{8,512}\Z")


class Forwarder:
    """ASGI application for all paths below ``/v1``.

    Args:
        pool: client of the pool.
        credential: the gateway's own credential, for the exchange of login codes.
        principals: finds the user of a token.
        user_rate: rate limit of requests for each user, over all tokens of the user.
        watchers: serves streams of changes.
    """

    def __init__(
        self, pool: PoolStreams, *, credential: str, principals: Principals, user_rate: Buckets, watchers: Watchers
    ) -> None:
        self._pool, self._credential = pool, credential
        self._principals, self._user_rate = principals, user_rate
        self._table = RouteTable(ROUTES)
        self._document = openapi()
        self._watch = watchers

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        try:
            await self._forward(scope, receive, send)
        except CalabashError as error:
            status = _STATUS.get(error.reason, 503)
            await refuse(send, status, error, *_MORE.get(status, []))

    async def _forward(self, scope: Any, receive: Receive, send: Send) -> None:
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        path = scope.get("raw_path", b"").decode("latin-1").partition("?")[0]
        if path == DOCUMENT and method == "GET":
            await answer(send, 200, self._document, (b"cache-control", b"public, max-age=300"))
            return
        found = self._table.find(method, CHANGED if path == WATCHED else path)
        if found.route is None:
            await _unknown(send, method, path, found.allowed)
            return
        headers = headers_of(scope)
        shown = token_of(headers)
        exchange = not shown and (method, path) == _EXCHANGE
        if not shown and not exchange:
            raise CalabashError(
                "the request has no token",
                reason=Reason.NOT_AUTHENTICATED,
                hint="send `Authorization: Bearer TOKEN`; create a token with `calabash user token create`",
            )
        origin = forwarded_for(scope)
        holder = "" if exchange else await self._principals.user_of(shown, origin=origin)
        wait_s = self._user_rate.take(holder) if holder else 0.0
        if wait_s:
            await too_many(send, wait_s)
            return
        if path == WATCHED:
            await self._watch.serve(scope, receive, send, shown, headers)
            return
        query = scope.get("query_string", b"").decode("latin-1")
        body = await body_of(receive)
        if exchange:
            _require_code(body)
        token = self._credential if exchange else shown
        target = f"{path}?{query}" if query else path
        passed = {**origin, VERSION_HEADER: headers.get(VERSION_HEADER.lower(), "")[:64]}
        asked = self._pool.ask(method, target, body, token=token, headers=passed, timeout_s=WAIT_S, holder=holder)
        replied = await while_connected(scope, receive, asked)
        given = [(b"content-type", replied.headers.get("content-type", "application/json").encode("latin-1"))]
        if replied.status == 401:
            given.append(CHALLENGE)
        content = replied.content
        status = replied.status
        if method == "GET" and status == 200:
            tag = f'"{hashlib.blake2b(content, digest_size=12).hexdigest()}"'
            given += [(b"etag", tag.encode()), (b"cache-control", b"private, no-cache")]
            if tag in [word.strip().removeprefix("W/") for word in headers.get("if-none-match", "").split(",")]:
                status, content = 304, b""
        if status != 304:
            given.append((b"content-length", str(len(content)).encode()))
        await send({"type": "http.response.start", "status": status, "headers": given})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else content})


def _require_code(body: bytes) -> None:
    """Raise CalabashError unless the body requests a session for a login code, and nothing else.

    A client sends such a request without a token, so the gateway forwards it with its own credential. That credential
    also permits sessions without a code, for a subject of the identity provider; clients must not get these.
    """
    try:
        order = msgspec.json.decode(body, type=SessionOrder)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise CalabashError(f"the request cannot be decoded: {error}", hint=f"see {DOCUMENT}") from None
    if not order.code or order.subject or order.console:
        raise CalabashError(
            "a session without a token needs a login code", reason=Reason.NOT_PERMITTED, hint="calabash login --link"
        )


async def _unknown(send: Send, method: str, path: str, allowed: tuple[str, ...]) -> None:
    if allowed:
        error = CalabashError(f"{method} is not a method of {path}", hint=f"allowed: {', '.join(allowed)}")
        await refuse(send, 405, error, (b"allow", ", ".join(allowed).encode()))
        return
    error = CalabashError(f"no route {path}", reason=Reason.NOT_FOUND, hint=f"see {DOCUMENT}")
    await refuse(send, 404, error)


def token_of(headers: Mapping[str, str]) -> str:
    """Return the bearer token; "" if there is none. The pool checks it.

    Raises:
        CalabashError: NOT_PERMITTED if the Authorization header is not a bearer token.
    """
    shown = headers.get("authorization", "")
    if not shown:
        return ""
    scheme, _, token = shown.partition(" ")
    if scheme.lower() != "bearer" or not _TOKEN.match(token.strip()):
        raise CalabashError(
            "the Authorization header is not `Bearer TOKEN`",
            reason=Reason.NOT_PERMITTED,
            hint="create a token with `calabash user token create`",
        )
    return token.strip()
