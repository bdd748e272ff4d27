"""The ASGI application of a pool: its routes, and the HTTP status of each error."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import structlog

from calabash.adapters.host.failures import EXHAUSTED, FULL, failure
from calabash.api import replies
from calabash.api.client_version import check_client_version
from calabash.api.endpoints import VERSION_HEADER
from calabash.model.errors import CalabashError, Reason
from calabash.model.extras import missing_import
from calabash.platform.context import Operations
from calabash.platform.handlers.audit import AUDIT
from calabash.platform.handlers.audit_middleware import audited
from calabash.platform.handlers.billing import BILLING
from calabash.platform.handlers.changes import CHANGES
from calabash.platform.handlers.network_certificates import CERTIFICATES
from calabash.platform.handlers.networks import NETWORKS
from calabash.platform.handlers.notifications import NOTIFICATIONS
from calabash.platform.handlers.request import Asked, caller_of, shown_to
from calabash.platform.handlers.tenancy import TENANCY
from calabash.platform.http.change_feed import ChangeFeed
from calabash.platform.http.server import Application, Message, Receive, Send, connection_of
from calabash.transport.web.application import HTTPException, Response, WebApplication, json_response
from calabash.transport.web.routing import Handler

log = structlog.get_logger(__name__)

OPERATING: tuple[Handler, ...] = (
    *AUDIT,
    *TENANCY,
    *BILLING,
    *CHANGES,
    *NOTIFICATIONS,
    *NETWORKS,
    *CERTIFICATES,
)

_STATUS = {
    Reason.BAD_REQUEST: 400,
    Reason.UNKNOWN_MODE: 400,
    Reason.NOT_AUTHENTICATED: 401,
    Reason.NOT_PERMITTED: 403,
    Reason.NOT_FOUND: 404,
    Reason.USER_LIMIT: 429,
    Reason.POOL_DOWN: 503,
    Reason.STORE_UNAVAILABLE: 503,
    Reason.STORE_NEWER: 503,
    Reason.STORE_DAMAGED: 503,
    Reason.OVERLOADED: 503,
    Reason.HOST_FAILED: 503,
    Reason.DISK_FULL: 507,
}
_CUT_OFF = replies.Failure(
    reason=str(Reason.POOL_DOWN),
    message="the pool is shutting down",
    hint="repeat the request when it is up: calabash up",
)


def _failure(request: Asked, error: Exception) -> Response:
    if isinstance(error, OSError) and error.errno in (EXHAUSTED | FULL):
        error = failure(error, "the pool cannot answer now")
    if isinstance(error, ImportError):
        error = missing_import(error) or error
    if isinstance(error, CalabashError):
        status_code = _STATUS.get(error.reason, 409)
        shown = shown_to(request)
        content = replies.Failure(
            reason=str(error.reason), message=shown(error.message_text), hint=shown(error.hint_text)
        )
    elif isinstance(error, HTTPException):
        status_code = error.status_code
        reason = {404: Reason.NOT_FOUND, 405: Reason.BAD_REQUEST}.get(status_code, Reason.BAD_REQUEST)
        content = replies.Failure(reason=str(reason), message=error.detail, hint="see the API reference")
    else:
        log.error("a request failed unexpectedly", exc_info=error)
        status_code = 500
        content = replies.Failure(reason="internal", message="the pool failed unexpectedly", hint="see pool.log")
    return json_response(content, status_code)


async def _admit(request: Asked) -> None:
    """Refuse a client of an unsupported version, and authenticate each request that came over the network."""
    stated = request.headers.get(VERSION_HEADER, "")
    check_client_version(stated, request.scope["method"], request.scope["path_template"], server="the pool")
    if connection_of(request.scope).token_required:
        caller_of(request)


def served(operations: Operations, handlers: Sequence[Handler], state: dict[str, Any]) -> Application:
    """Return the application with these routes.

    Args:
        handlers: all routes, including those of ``OPERATING``.
        state: values of the application's state that the routes use.
    """
    shared = {**state, "operations": operations, "changes": ChangeFeed(operations.pool.traces)}
    routes = WebApplication(handlers, failed=_failure, before=_admit, state=shared)
    return audited(operations.audit, answer_when_cut_off(routes))


def answer_when_cut_off(application: Application) -> Application:
    """Wrap an application so that a request that is cancelled before its reply began is answered with status 503."""

    async def ask(scope: Any, receive: Receive, send: Send) -> None:
        begun = scope["type"] != "http"

        async def answer(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await application(scope, receive, answer)
        except asyncio.CancelledError:
            if begun:
                raise
            headers = [(b"content-type", b"application/json")]
            await send({"type": "http.response.start", "status": 503, "headers": headers})
            await send({"type": "http.response.body", "body": msgspec.json.encode(_CUT_OFF)})

    return ask
