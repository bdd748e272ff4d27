"""What every request passes before anything looks at it: the host that it names, rates, the size of its body; and the headers
that every answer has.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import msgspec
import structlog

from calabash.api import replies, requests
from calabash.model.errors import CalabashError, Reason
from calabash.server.settings import Gateway

log = structlog.get_logger(__name__)

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Any, Any, Any], Awaitable[None]]

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
BODY_S = 10.0  # from the end of the head to the end of the body


def headers_of(scope: Any) -> dict[str, str]:
    """Headers of a request with small names; the last one of a name counts."""
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}


def client_of(scope: Any, settings_proxies: list[str]) -> tuple[str, str]:
    """Address and scheme of whoever asks; a proxy that is believed says whose request it passes on."""
    address, scheme = (scope.get("client") or ("", 0))[0], scope.get("scheme", "http")
    if address in settings_proxies:
        headers = headers_of(scope)
        address = headers.get("x-forwarded-for", address).rpartition(",")[2].strip()
        scheme = "https" if headers.get("x-forwarded-proto", scheme) == "https" else scheme
    return address, scheme


def forwarded_for(scope: Any) -> dict[str, str]:
    """The header that tells the pool, for its audit log, from where a request came."""
    address: str = scope.get("calabash.address", "")
    plain = address.isascii() and address.isprintable()
    return {"x-forwarded-for": address[:64]} if address and plain else {}


async def answer(send: Send, status: int, shown: Any, *headers: tuple[bytes, bytes]) -> None:
    """One answer in JSON."""
    content = msgspec.json.encode(shown)
    named = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode()), *headers]
    await send({"type": "http.response.start", "status": status, "headers": named})
    await send({"type": "http.response.body", "body": content})


async def refuse(send: Send, status: int, error: CalabashError, *headers: tuple[bytes, bytes]) -> None:
    """One failure in JSON."""
    shown = replies.Failure(reason=str(error.reason), message=error.message, hint=error.hint)
    await answer(send, status, shown, *headers)


class RequestGuard:
    """The application behind the bounds."""

    def __init__(self, application: Application, gateway: Gateway) -> None:
        self._application = application
        self._gateway = gateway

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        address, scheme = client_of(scope, self._gateway.settings.proxies)
        scope["scheme"] = scheme
        scope["calabash.address"] = address
        seen = {"status": 0}

        async def secured(message: Message) -> None:
            if message["type"] == "http.response.start":
                seen["status"] = message["status"]
                message["headers"] = _with_security(message.get("headers", []), https=scheme == "https")
            await send(message)

        refused = self._refused(scope, address)
        if refused is not None:
            status, error, *headers = refused
            await refuse(secured, status, error, *headers)
            return
        try:
            await self._application(scope, _bounded(receive, requests.body_bytes_max(scope["path"])), secured)
        except Exception:
            log.exception("a request failed unexpectedly", path=scope["path"])
            if seen["status"]:
                raise
            error = CalabashError("the gateway failed unexpectedly", reason=Reason.CONFLICT, hint="see the pool's log")
            await refuse(secured, 500, error)
        if seen["status"] == UNSIGNED:
            self._gateway.refusals.take(address)

    def _refused(self, scope: Any, address: str) -> Any:
        headers = headers_of(scope)
        if not self._gateway.hosts.known(headers.get("host", "")):
            return (
                421,
                CalabashError(
                    "this server is not known by the host name of the request",
                    reason=Reason.NOT_PERMITTED,
                    hint="use its address, or name it in `hosts` of [console] in pool.toml",
                ),
            )
        if sum(name.lower() == b"authorization" for name, _ in scope["headers"]) > 1:
            return 400, CalabashError("the request has two Authorization headers", hint="send one")
        length = headers.get("content-length", "0")
        most = requests.body_bytes_max(scope["path"])
        if not length.isdigit() or int(length) > most:
            return 413, CalabashError(f"the request body is larger than {most} bytes", hint="shorten it")
        shown = headers.get("authorization") or headers.get("cookie") or ""
        key = "token " + hashlib.sha256(shown.encode()).hexdigest() if shown else "address " + address
        wait_s = self._gateway.requests.take(key)
        if not wait_s and self._gateway.refusals.left(address) < 1.0:
            wait_s = 60.0 / self._gateway.settings.limits.refused_per_minute
        if wait_s:
            error = CalabashError(
                "too many requests", reason=Reason.USER_LIMIT, hint=f"wait {math.ceil(wait_s)}s, and ask less often"
            )
            return 429, error, (b"retry-after", str(math.ceil(wait_s)).encode())
        return None


def _bounded(receive: Receive, most: int) -> Receive:
    """Chunks of a body that says no length are counted, and nobody waits for ever for the last one."""
    left, arrived = most, False
    until_s = asyncio.get_running_loop().time() + BODY_S

    async def next_message() -> Message:
        nonlocal left, arrived
        try:
            async with asyncio.timeout_at(None if arrived else until_s):
                message = await receive()
        except TimeoutError:
            return {"type": "http.disconnect"}
        left -= len(message.get("body", b""))
        arrived = arrived or not message.get("more_body", False)
        if left < 0:
            return {"type": "http.disconnect"}
        return message

    return next_message


def _with_security(headers: Any, *, https: bool) -> list[tuple[bytes, bytes]]:
    found = list(headers)
    there = {name.lower() for name, _ in found}
    found += [pair for pair in SECURITY if pair[0] not in there]
    if b"cache-control" not in there:
        found.append((b"cache-control", b"no-store"))
    if https:
        found.append(TRANSPORT_SECURITY)
    return found
