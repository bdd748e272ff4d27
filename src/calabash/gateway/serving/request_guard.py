"""Check the host, rate and body size of each request, and add security headers to replies.

The body is read completely before the application is called. The application therefore never gets a body that is too
large or incomplete, or that arrives too slowly.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from asyncio import sleep
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeVar

import msgspec
import structlog

from calabash.api import endpoints, replies, requests
from calabash.api.gateway import SESSION_HEADER
from calabash.gateway.serving.allowed_hosts import Hosts
from calabash.gateway.serving.rate_limits import Buckets
from calabash.model.errors import CalabashError, Reason

log = structlog.get_logger(__name__)

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Any, Any, Any], Awaitable[None]]
Answer = TypeVar("Answer")

CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; font-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
SECURITY = (
    (b"content-security-policy", CONTENT_POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
)
TRANSPORT_SECURITY = (b"strict-transport-security", b"max-age=31536000")
UNSIGNED = 401
SESSION_SCOPE = "calabash.session"  # key in the scope: the session whose proof is valid
BODY_S = 10.0  # from the end of the head to the end of the body
HANG_UP_S = 2.0  # interval of checks for a disconnect while the connection is not read
REFUSAL_S = 1.0  # delay of the reply to a refused credential after too many refusals of its peer
PEER, CONNECTION = "calabash.peer", "calabash.connection"  # keys in the state of a connection


def headers_of(scope: Any) -> dict[str, str]:
    """Return the headers of a request by lower-case name; if a name occurs several times, the last header counts."""
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}


def client_of(scope: Any, settings_proxies: list[str]) -> tuple[str, str]:
    """Return the client's address and scheme (http or https).

    For a connection of a trusted proxy, both are read from the headers ``X-Forwarded-For`` and ``X-Forwarded-Proto``.
    """
    address, scheme = (scope.get("client") or ("", 0))[0], scope.get("scheme", "http")
    if address in settings_proxies:
        headers = headers_of(scope)
        address = headers.get("x-forwarded-for", address).rpartition(",")[2].strip()
        scheme = "https" if headers.get("x-forwarded-proto", scheme) == "https" else scheme
    return address, scheme


def peer_of(scope: Any) -> str:
    """Return the peer for whose limits a request without a valid credential counts: a local user, or an address."""
    peer: str = scope["state"].get(PEER, "")
    return peer or f"address {scope.get('calabash.address', '')}"


def forwarded_for(scope: Any) -> dict[str, str]:
    """Return the header that gives the pool the client's address for its audit log."""
    address: str = scope.get("calabash.address", "")
    plain = address.isascii() and address.isprintable()
    return {"x-forwarded-for": address[:64]} if address and plain else {}


async def answer(send: Send, status: int, shown: Any, *headers: tuple[bytes, bytes]) -> None:
    """Send a reply in JSON."""
    content = msgspec.json.encode(shown)
    named = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode()), *headers]
    await send({"type": "http.response.start", "status": status, "headers": named})
    await send({"type": "http.response.body", "body": content})


async def body_of(receive: Receive) -> bytes:
    """Return the body of a request that has passed the guard, which delivers the whole body in one message."""
    body: bytes = (await receive()).get("body", b"")
    return body


async def while_connected(scope: Any, receive: Receive, answering: Awaitable[Answer]) -> Answer:
    """Return the result of ``answering``; if the client disconnects first, cancel it and raise HungUpError."""
    disconnected = asyncio.ensure_future(_wait_for_disconnect(scope, receive))
    asked = asyncio.ensure_future(answering)
    try:
        await asyncio.wait({disconnected, asked}, return_when=asyncio.FIRST_COMPLETED)
        if not asked.done():
            raise HungUpError
        return asked.result()
    finally:
        disconnected.cancel()
        asked.cancel()


async def _wait_for_disconnect(scope: Any, receive: Receive) -> None:
    """Return when the client has disconnected.

    uvicorn does not read the connection while the client's next request waits, so it would not notice a disconnect. The
    state of the socket is therefore checked every HANG_UP_S seconds as well.
    """
    connection = scope["state"].get(CONNECTION)
    told = asyncio.ensure_future(_disconnected(receive))
    try:
        while not told.done():
            await asyncio.wait({told}, timeout=HANG_UP_S)
            if connection is not None and connection.hung_up():
                connection.drop()
    finally:
        told.cancel()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def with_body(receive: Receive, body: bytes) -> Receive:
    """Return an ASGI ``receive`` function that delivers the body first, and then the messages of ``receive``."""
    given = False

    async def next_message() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return next_message


async def too_many(send: Send, wait_s: float) -> None:
    """Reply 429 with the time after which the client may try again."""
    seconds = math.ceil(wait_s)
    error = CalabashError(
        "too many requests", reason=Reason.USER_LIMIT, hint=f"wait {seconds}s, and send requests less often"
    )
    await refuse(send, 429, error, (b"retry-after", str(seconds).encode()))


async def refuse(send: Send, status: int, error: CalabashError, *headers: tuple[bytes, bytes]) -> None:
    """Reply with an HTTP status and an error in JSON."""
    shown = replies.Failure(reason=str(error.reason), message=error.message, hint=error.hint)
    await answer(send, status, shown, *headers)


class RequestGuard:
    """ASGI middleware that checks requests and adds security headers.

    Args:
        application: gets the requests that pass.
        hosts: host names under which the gateway may be reached.
        proxies: addresses of trusted proxies.
        rate: rate limit of requests for each token, session or peer (a local user or an address).
        refusals: rate limit of refused credentials for each peer.
    """

    def __init__(
        self, application: Application, *, hosts: Hosts, proxies: list[str], rate: Buckets, refusals: Buckets
    ) -> None:
        self._application = application
        self._hosts, self._proxies = hosts, proxies
        self._rate, self._refusals = rate, refusals

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        address, scheme = client_of(scope, self._proxies)
        scope["scheme"] = scheme
        scope["calabash.address"] = address
        seen = {"status": 0}

        async def secured(message: Message) -> None:
            if message["type"] == "http.response.start":
                seen["status"] = message["status"]
                if message["status"] == UNSIGNED:
                    await self._hold_back(scope)
                else:
                    _prove(scope, message["status"])
                message["headers"] = _with_security(message.get("headers", []), https=scheme == "https")
            await send(message)

        try:
            refused = self._refused(scope)
            if refused is not None:
                await refuse(secured, *refused)
                return
            wait_s = self._wait_s(scope)
            if wait_s:
                await too_many(secured, wait_s)
                return
            body = await _whole_body(receive, requests.body_bytes_max(scope["path"])) if _has_body(scope) else b""
            await self._application(scope, with_body(receive, body), secured)
        except _RefusedError as refusal:
            await refuse(secured, refusal.status, refusal.error, (b"connection", b"close"))
        except HungUpError:
            return
        except Exception:
            log.exception("a request failed unexpectedly", path=scope["path"])
            if seen["status"]:
                raise
            error = CalabashError("internal error of the gateway", reason=Reason.CONFLICT, hint="see the pool's log")
            await refuse(secured, 500, error)

    def _refused(self, scope: Any) -> tuple[int, CalabashError] | None:
        headers = headers_of(scope)
        if not self._hosts.accepts(headers.get("host", "")):
            return (
                421,
                CalabashError(
                    "the host name of the request is not one of this server",
                    reason=Reason.NOT_PERMITTED,
                    hint="use its IP address, or add the name to `hosts` of [console] in pool.toml",
                ),
            )
        if sum(name.lower() == b"authorization" for name, _ in scope["headers"]) > 1:
            return 400, CalabashError("the request has more than one Authorization header", hint="send one")
        length = headers.get("content-length", "0")
        most = requests.body_bytes_max(scope["path"])
        if not (length.isascii() and length.isdigit()) or len(length) > 15 or int(length) > most:
            return 413, _too_large(most)
        return None

    def _wait_s(self, scope: Any) -> float:
        """Count the request for the rate limit of its token or peer; return the seconds to wait, 0 if it is allowed.

        A request that names a session is not counted here, but after its proof was verified: a session ID is no secret,
        so others could use up the session's rate.
        """
        headers = headers_of(scope)
        if shown := headers.get("authorization", ""):
            return self._rate.take("token " + hashlib.sha256(shown.encode()).hexdigest())
        if SESSION_HEADER in headers:
            return 0.0
        return self._rate.take(f"peer {peer_of(scope)}")

    async def _hold_back(self, scope: Any) -> None:
        """Delay the reply to a refused credential if too many credentials of its peer were refused.

        This limits how many credentials a client can try. Other requests of the peer are not delayed.
        """
        if self._refusals.take(f"peer {peer_of(scope)}"):
            connection = scope["state"].get(CONNECTION)
            await (connection.hold_back if connection else sleep)(REFUSAL_S)


def _prove(scope: Any, status: int) -> None:
    """Count the connection for the credential of the request if the credential was accepted.

    A token is accepted if the pool has answered with success, a session if its proof is valid.
    """
    connection, headers = scope["state"].get(CONNECTION), headers_of(scope)
    if connection is None or status == 421:
        return
    if scope.get(SESSION_SCOPE) is not None:
        connection.prove(f"session {scope[SESSION_SCOPE].id}")
    elif (
        (shown := headers.get("authorization", ""))
        and 200 <= status < 400
        and scope["path"].startswith(f"{endpoints.ROOT}/")
    ):
        connection.prove("token " + hashlib.sha256(shown.encode()).hexdigest())


class _RefusedError(Exception):
    def __init__(self, status: int, error: CalabashError) -> None:
        super().__init__(error.message)
        self.status, self.error = status, error


class HungUpError(Exception):
    """Error for a client that disconnected before its request was complete or answered."""


def _too_large(most: int) -> CalabashError:
    return CalabashError(f"the request body is larger than {most} bytes", hint="send less data")


def _has_body(scope: Any) -> bool:
    """Return False for a GET or HEAD that announces no body."""
    announced = any(name.lower() in {b"content-length", b"transfer-encoding"} for name, _ in scope["headers"])
    return announced or scope["method"] not in {"GET", "HEAD"}


async def _whole_body(receive: Receive, most: int) -> bytes:
    """Read the whole body.

    Raises:
        _RefusedError: if it has more than ``most`` bytes or does not arrive within BODY_S.
        HungUpError: if the client disconnects.
    """
    found = bytearray()
    try:
        async with asyncio.timeout(BODY_S):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise HungUpError
                found += message.get("body", b"")
                if len(found) > most:
                    raise _RefusedError(413, _too_large(most))
                if not message.get("more_body", False):
                    return bytes(found)
    except TimeoutError:
        error = CalabashError(
            f"the request body was not received within {BODY_S:g}s", hint="send the body without pauses"
        )
        raise _RefusedError(408, error) from None


def _with_security(headers: Any, *, https: bool) -> list[tuple[bytes, bytes]]:
    found = list(headers)
    there = {name.lower() for name, _ in found}
    found += [pair for pair in SECURITY if pair[0] not in there]
    if b"cache-control" not in there:
        found.append((b"cache-control", b"no-store"))
    if https:
        found.append(TRANSPORT_SECURITY)
    return found
