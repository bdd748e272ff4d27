"""The ASGI application: all routes, and what an error is answered with."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import structlog
from litestar import Litestar, Response
from litestar.datastructures import State
from litestar.exceptions import HTTPException

from calabash.api import replies
from calabash.model.errors import CalabashError, Reason
from calabash.standalone.auditing import AuditTrail
from calabash.standalone.handlers.administration import ADMINISTRATION
from calabash.standalone.handlers.allocations import ALLOCATIONS
from calabash.standalone.handlers.asked import Asked, Context, caller_of, shown_to
from calabash.standalone.handlers.audit import AUDIT
from calabash.standalone.handlers.audited import audited
from calabash.standalone.handlers.billing import BILLING
from calabash.standalone.handlers.changes import CHANGES
from calabash.standalone.handlers.devices import DEVICES
from calabash.standalone.handlers.machine import MACHINE
from calabash.standalone.handlers.mig import MIG
from calabash.standalone.handlers.overview import OVERVIEW
from calabash.standalone.handlers.simulator import SIMULATOR
from calabash.standalone.handlers.tenancy import TENANCY
from calabash.standalone.pool import Pool
from calabash.standalone.serving import Application, connection_of

log = structlog.get_logger(__name__)

HANDLERS = (
    *AUDIT,
    *MACHINE,
    *DEVICES,
    *ALLOCATIONS,
    *ADMINISTRATION,
    *MIG,
    *OVERVIEW,
    *SIMULATOR,
    *TENANCY,
    *BILLING,
    *CHANGES,
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
    Reason.DISK_FULL: 507,
}


# These repeat what was asked for and know of nothing else. Were names of others replaced in them, whoever guesses such a
# name would learn from the replacement that there is one.
_SAID_BY_THE_ASKER = {Reason.BAD_REQUEST, Reason.NOT_PERMITTED, Reason.NOT_AUTHENTICATED, Reason.NOT_FOUND}


def _failure(request: Asked, error: Exception) -> Response[replies.Failure]:
    if isinstance(error, CalabashError):
        status_code = _STATUS.get(error.reason, 409)
        seen = str if error.reason in _SAID_BY_THE_ASKER else shown_to(request)
        content = replies.Failure(reason=str(error.reason), message=seen(error.message), hint=seen(error.hint))
    elif isinstance(error, HTTPException):
        status_code = error.status_code
        reason = {404: Reason.NOT_FOUND, 405: Reason.BAD_REQUEST}.get(status_code, Reason.BAD_REQUEST)
        content = replies.Failure(reason=str(reason), message=error.detail, hint="see the API reference")
    else:
        log.error("a request failed unexpectedly", exc_info=error)
        status_code = 500
        content = replies.Failure(reason="internal", message="the pool failed unexpectedly", hint="see pool.log")
    return Response(content=content, status_code=status_code, media_type="application/json")


async def _known_where_it_must_be(request: Asked) -> None:
    """What comes over the network shows a token that is good, whatever the route makes of it."""
    if connection_of(request.scope).token_required:
        caller_of(request)


def application(pool: Pool, context: Context, *, audit: AuditTrail, stop: Callable[[], None]) -> Application:
    """The ASGI application."""
    state = {
        "pool": pool,
        "context": context,
        "stop": stop,
        "audit": audit,
        "pid": os.getpid(),
        "started_at": time.time(),
        "membership": pool.agent.snapshot().membership,
    }
    routes = Litestar(
        route_handlers=list(HANDLERS),
        state=State(state),
        before_request=_known_where_it_must_be,
        exception_handlers={Exception: _failure},
        openapi_config=None,
        request_max_body_size=None,  # bounded where it is read
        logging_config=None,
    )
    return audited(audit, routes)
