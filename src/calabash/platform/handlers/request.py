"""Helpers of all API routes: authenticate the caller, get its visibility, read the body, and run work in a thread.

A request is authenticated by its token, or without one by the kernel's peer credentials of its connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from typing import Any, ParamSpec, TypeVar

import structlog
from msgspec import UnsetType

from calabash.api import requests
from calabash.api.gateway import SESSION_HEADER
from calabash.model.errors import CalabashError, Reason
from calabash.model.messages import Text, redacted
from calabash.model.tenancy import Principal, TokenKind
from calabash.platform.access.caller import Caller
from calabash.platform.access.visibility import Visibility
from calabash.platform.context import Operations
from calabash.platform.http.server import connection_of
from calabash.platform.settings_changes import guarantee_warnings
from calabash.transport.web.application import HTTPException, Request

BODY_S = 10.0

Given = ParamSpec("Given")
Answer = TypeVar("Answer")
Asked = Request
_CALLER = "calabash caller"


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """An authenticated request: who sent it, and the services of the pool.

    ``session_of`` builds it once for routes that do several steps on behalf of the caller.
    """

    request: Asked
    operations: Operations
    caller: Caller

    @property
    def visibility(self) -> Visibility:
        """The visibility of the requesting principal, from the present allocations."""
        return self.operations.pool.visibility(self.caller.principal)

    async def work(self, call: Callable[Given, Answer], /, *given: Given.args, **named: Given.kwargs) -> Answer:
        """Call a function in a worker thread and return its result, like the module's function ``work``."""
        return await _in_thread(self.operations, self.caller, self.request.method == "GET", call, *given, **named)


def session_of(request: Asked) -> Session:
    """Authenticate a request and return its session. Raises CalabashError like ``caller_of``."""
    return Session(request=request, operations=operations_of(request), caller=caller_of(request))


def caller_of(request: Asked) -> Caller:
    """Return the caller of a request; authenticate it at the first call.

    Raises NOT_PERMITTED if the pool does not serve the user, NOT_AUTHENTICATED for an invalid token.
    """
    known: Caller | None = request.scope["state"].get(_CALLER)
    if known is not None:
        return known
    caller = connection_of(request.scope).caller
    if caller is None:
        raise CalabashError("the connection has no peer", reason=Reason.NOT_PERMITTED)
    principal = principal_of(request)
    operations_of(request).permission.require_served(principal)
    caller = replace(caller, principal=principal, process=caller.process if principal.local else None)
    request.scope["state"][_CALLER] = caller
    return caller


def known_caller(scope: Any) -> Caller | None:
    """Return the caller that ``caller_of`` has authenticated; None before that."""
    found: Caller | None = scope["state"].get(_CALLER)
    return found


def principal_of(request: Asked) -> Principal:
    """Return the principal of a request: the user of its token, or without a token the user of the connected process.

    Raises NOT_AUTHENTICATED for an invalid token, and without a token if the connection requires one.
    """
    operations, connection = operations_of(request), connection_of(request.scope)
    given = request.headers.getlist("authorization")
    if given:
        kind, _, secret = given[0].partition(" ")
        if len(given) > 1 or kind.lower() != "bearer":
            raise CalabashError(
                "the Authorization header is not understood",
                reason=Reason.NOT_AUTHENTICATED,
                hint="one header, `Authorization: Bearer TOKEN`",
            )
        token = operations.tokens.check(secret.strip())
        if token.kind is TokenKind.GATEWAY and (session := request.headers.get(SESSION_HEADER, "")):
            token = operations.tokens.session(session)
        if token.kind is TokenKind.LOGIN:
            raise CalabashError(
                "a login code is no token",
                reason=Reason.NOT_AUTHENTICATED,
                hint="exchange it for a session: calabash login, or the console's page",
            )
        return operations.permission.of_token(token)
    if connection.token_required or connection.caller is None:
        raise CalabashError(
            "no token came with the request",
            reason=Reason.NOT_AUTHENTICATED,
            hint="send `Authorization: Bearer TOKEN`; `calabash user token create` makes one",
        )
    return operations.permission.of_peer(connection.caller.peer)


def operations_of(request: Asked) -> Operations:
    """Return the services of the pool."""
    found: Operations = request.app.state.operations
    return found


def visibility_of(request: Asked) -> Visibility:
    """Return the visibility of the requesting principal. Raises CalabashError like ``caller_of``."""
    return operations_of(request).pool.visibility(caller_of(request).principal)


def shown_to(request: Asked) -> Callable[[Text], str]:
    """Return a function that renders a text for the requesting user.

    If the request is not authenticated yet, the function redacts all names.
    """
    caller: Caller | None = request.scope["state"].get(_CALLER)
    return redacted if caller is None else operations_of(request).pool.visibility(caller.principal).text


async def work(request: Asked, call: Callable[Given, Answer], *given: Given.args, **named: Given.kwargs) -> Answer:
    """Call a function in a worker thread and return its result.

    Waits first while the user already has as many running calls as the user's limit allows.
    """
    caller: Caller | None = request.scope["state"].get(_CALLER) or connection_of(request.scope).caller
    assert caller is not None
    return await _in_thread(operations_of(request), caller, request.method == "GET", call, *given, **named)


async def _in_thread(
    operations: Operations,
    caller: Caller,
    reads: bool,
    call: Callable[Given, Answer],
    /,
    *given: Given.args,
    **named: Given.kwargs,
) -> Answer:
    token = caller.principal.token
    who: int | str = caller.principal.key if token else caller.peer.uid
    with structlog.contextvars.bound_contextvars(uid=who, **({"token": token} if token else {})):
        async with operations.fairness.work(who, reads=reads):
            return await asyncio.to_thread(call, *given, **named)


async def guarantee_warnings_of(request: Asked, guarantee: float | UnsetType) -> list[str]:
    """Return warnings if a change sets a guarantee and queues are guaranteed more devices than exist.

    Args:
        guarantee: guaranteed devices of the change; UNSET: the change sets none.
    """
    if not guarantee:
        return []
    operations, visibility = operations_of(request), visibility_of(request)
    return guarantee_warnings(await work(request, operations.pool.queues, visibility), operations.pool.device_count())


async def body_of(request: Asked) -> bytes:
    """Return the whole body of a request.

    Raises HTTPException(413) beyond the size limit of the path; CalabashError if it takes longer than BODY_S seconds, after
    dropping the connection.
    """
    found, most = bytearray(), requests.body_bytes_max(request.scope["path"])
    try:
        async with asyncio.timeout(BODY_S):
            async for chunk in _chunks(request):
                found += chunk
                if len(found) > most:
                    raise HTTPException(413, f"the request body is larger than {most} bytes")
    except TimeoutError:
        connection_of(request.scope).abort()
        raise CalabashError(f"the body did not come within {BODY_S:g}s", hint="send it at once") from None
    return bytes(found)


async def _chunks(request: Asked) -> AsyncIterator[bytes]:
    while True:
        message: Any = await request.receive()
        if message["type"] == "http.disconnect":
            return
        yield bytes(message.get("body", b""))
        if not message.get("more_body", False):
            return
