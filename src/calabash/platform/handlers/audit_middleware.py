"""ASGI middleware that writes the audit log: a line for each request that changes something or is refused.

The reply to a change is sent after its line is written. Requests for allocations and releases do not wait for that: their
lines are written a moment later, and are rate-limited per user like those of refused requests.
"""

from __future__ import annotations

import asyncio
from typing import Any

from calabash.api import endpoints
from calabash.model.access import requestable_tenants
from calabash.model.audit import AuditLine
from calabash.model.errors import CalabashError
from calabash.model.tenancy import Principal
from calabash.platform.audit.trail import AuditTrail
from calabash.platform.handlers.request import Asked, known_caller
from calabash.platform.http.server import Application, Message, Receive, Send, connection_of

WORDS_MAX = 200
_READ_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_REFUSED = frozenset({401, 403})
_RUNS = endpoints.ALLOCATE.path
_TENANTS = f"{endpoints.LIST_TENANTS.path}/"
_CONCERNED = "calabash concerned"


def audited(audit: AuditTrail, application: Application) -> Application:
    """Wrap an application so that requests that change something or are refused are written to the audit log."""

    async def ask(scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await application(scope, receive, send)
            return

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                status = int(message["status"])
                if scope["method"] not in _READ_METHODS or status in _REFUSED:
                    await _write(audit, scope, status)
            await send(message)

        await application(scope, receive, answer)

    return ask


async def _write(audit: AuditTrail, scope: Any, status: int) -> None:
    path = str(scope["path"])
    runs = path.startswith(_RUNS)
    done = audit.add(_line(scope, path, status), bounded=runs or status >= 400)
    if not runs and status < 400:
        try:
            await asyncio.wrap_future(done)
        except (CalabashError, OSError):
            return  # the error is in the pool's log; the change is already made


def _line(scope: Any, path: str, status: int) -> AuditLine:
    connection: Any = connection_of(scope)
    caller = known_caller(scope)
    principal = caller.principal if caller is not None else Principal(user="")
    peer = connection.caller.peer if connection.caller is not None else None
    origin = f"uid {peer.uid} pid {peer.pid}" if peer is not None else ""
    if connection.token_required:  # the gateway forwards the address of its client
        origin = f"address {_forwarded(scope)}"
    concerned: tuple[str, str] = scope["state"].get(_CONCERNED, ("", ""))
    return AuditLine(
        at=0.0,
        user=principal.user[:WORDS_MAX],
        token=principal.token,
        origin=origin,
        tenant=(concerned[0] or _tenant(path, principal))[:WORDS_MAX],
        action=str(scope["method"])[:16],
        target=_plain(path + (f" {concerned[1]}" if concerned[1] else "")),
        outcome=status,
    )


def concerns(request: Asked, what: str, *, tenant: str = "") -> None:
    """Set the object that the audit line of a request names, for a request whose path does not name it.

    Args:
        what: the object; appended to the path.
        tenant: the tenant whose administrators may read the line.
    """
    request.scope["state"][_CONCERNED] = (tenant, what)


def _tenant(path: str, principal: Principal) -> str:
    """Return the tenant of an audit line: the tenant that the path names, or the only tenant of the user."""
    if path.startswith(_TENANTS):
        return _plain(path.removeprefix(_TENANTS).partition("/")[0])
    mine = requestable_tenants(principal)
    return mine[0] if len(mine) == 1 else principal.own


def _forwarded(scope: Any) -> str:
    given = [value for name, value in scope["headers"] if name == b"x-forwarded-for"]
    return _plain(given[-1].decode("latin-1").rpartition(",")[2].strip())[:64] if given else "unknown"


def _plain(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)[:WORDS_MAX]
