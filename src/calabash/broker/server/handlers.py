"""HTTP routes of the remote-device server, as an ASGI application.

Requests from the network are authenticated by token. Requests on the server's own Unix socket need no token: its file
permissions allow only the owner of the server to connect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import structlog

from calabash.api import lease_endpoints
from calabash.api.client_version import check_client_version
from calabash.api.endpoints import VERSION_HEADER
from calabash.broker import messages as broker_messages
from calabash.broker.server.authentication import TokenVerifier
from calabash.broker.server.broker import Broker
from calabash.broker.tokens import TokenClaims
from calabash.model.errors import CalabashError, Reason
from calabash.transport.web.application import (
    HTTPException,
    Request,
    Response,
    State,
    WebApplication,
    json_response,
)
from calabash.transport.web.routing import get, handles

log = structlog.get_logger(__name__)

BODY_S = 10.0
OWNER_KEY = "calabash_owner"  # set in the state of connections from the owner's socket
Asked = Request

_STATUS = {
    Reason.BAD_REQUEST: 400,
    Reason.NOT_PERMITTED: 403,
    Reason.NOT_FOUND: 404,
    Reason.POOL_DOWN: 503,
    Reason.DISK_FULL: 507,
}


def _broker(request: Asked) -> Broker:
    found: Broker = request.app.state.broker
    return found


def _is_owner(request: Asked) -> bool:
    return bool(request.scope.get("state", {}).get(OWNER_KEY))


def _peer(request: Asked) -> str:
    return "owner" if _is_owner(request) or request.client is None else f"{request.client.host}:{request.client.port}"


def _holder(request: Asked, *, ended_too: bool = False) -> TokenClaims | None:
    """Return the claims of the request's token; None for the server's owner.

    With ``ended_too``, a token that was revoked or has expired is accepted too. Raises NOT_PERMITTED without a valid
    token.
    """
    if _is_owner(request):
        return None
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    if kind.lower() != "bearer" or not token:
        raise CalabashError(
            "the request has no token",
            reason=Reason.NOT_PERMITTED,
            hint="ask the server's owner for a token; then: calabash remote add HOST:PORT --token FILE",
        )
    verifier: TokenVerifier = request.app.state.verifier
    return verifier.verify(token.strip(), ended_too=ended_too)


def _require_owner(request: Asked) -> None:
    if not _is_owner(request):
        raise CalabashError(
            "only the server's owner may do that",
            reason=Reason.NOT_PERMITTED,
            hint="run the command on the server's machine as the user that started it",
        )


async def _body(request: Asked) -> bytes:
    """Read the whole body of a request, bounded in size and time."""
    found = bytearray()
    try:
        async with asyncio.timeout(BODY_S):
            while True:
                message: Any = await request.receive()
                found += message.get("body", b"")
                if len(found) > broker_messages.BODY_BYTES_MAX:
                    raise HTTPException(413, f"the request is larger than {broker_messages.BODY_BYTES_MAX} bytes")
                if message["type"] == "http.disconnect" or not message.get("more_body", False):
                    return bytes(found)
    except TimeoutError:
        raise CalabashError(
            f"the request body was not received within {BODY_S:g}s", hint="send the body without pauses"
        ) from None


@handles(lease_endpoints.SHOW_SERVER)
async def server(request: Asked) -> broker_messages.ServerView:
    """Return the state of the server."""
    return await _broker(request).view(_holder(request))


@handles(lease_endpoints.LIST_LEASES)
async def leases(request: Asked) -> broker_messages.LeaseViews:
    """Return the leases of the token's name, or all leases for the owner of the server."""
    return _broker(request).leases.views(_holder(request, ended_too=True))


@handles(lease_endpoints.REQUEST_LEASE)
async def lease(request: Asked) -> broker_messages.LeaseGrant:
    """Grant a lease. If the client disconnects, the request to the pool is withdrawn.

    Raises:
        CalabashError: BAD_REQUEST for the owner, who has no token; CONFLICT if the client disconnected.
    """
    broker, holder = _broker(request), _holder(request)
    if holder is None:
        raise CalabashError(
            "a lease needs a token", hint="on the server itself use `calabash run --isolation brokered`"
        )
    order = broker_messages.decode_body(await _body(request), broker_messages.LeaseOrder)
    asking = asyncio.ensure_future(broker.lease(holder, order, _peer(request)))
    disconnected = asyncio.ensure_future(_hung_up(request))
    try:
        await asyncio.wait({asking, disconnected}, return_when=asyncio.FIRST_COMPLETED)
        if not asking.done():
            asking.cancel()
        granted = await asking
    except asyncio.CancelledError:
        asking.cancel()
        raise CalabashError("the client disconnected", reason=Reason.CONFLICT) from None
    finally:
        disconnected.cancel()
    return granted


async def _hung_up(request: Asked) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


@handles(lease_endpoints.RENEW_LEASE)
async def renew(request: Asked, lease: str) -> broker_messages.LeaseEnd:
    """Renew a lease: move its deadline, and return the seconds until then."""
    broker = _broker(request)
    holder = _holder(request, ended_too=broker.settings.on_revoke == "finish")
    return broker.leases.renew(broker.leases.require_lease(holder, lease))


@handles(lease_endpoints.END_LEASE)
async def release(request: Asked, lease: str) -> broker_messages.LeaseEnd:
    """End a lease at the request of its holder."""
    broker = _broker(request)
    held = broker.leases.require_lease(_holder(request, ended_too=True), lease)
    return await broker.leases.release(held, cut=broker.settings.on_revoke == "cut", peer=_peer(request))


@handles(lease_endpoints.DRAIN_SERVER)
async def drain(request: Asked) -> broker_messages.DrainServer:
    """Refuse or accept new leases; for the owner only."""
    _require_owner(request)
    order = broker_messages.decode_body(await _body(request), broker_messages.DrainServer)
    await _broker(request).drain(order.draining)
    return order


@handles(lease_endpoints.SHUT_DOWN_SERVER)
async def shutdown(state: State, request: Asked) -> broker_messages.StopServer:
    """Stop the server; for the owner only.

    Raises:
        CalabashError: CONFLICT while leases are held, unless the request forces their end.
    """
    _require_owner(request)
    order = broker_messages.decode_body(await _body(request), broker_messages.StopServer)
    broker = _broker(request)
    held = list(broker.leases)
    if held and not order.force:
        raise CalabashError(
            f"{len(held)} {'lease is' if len(held) == 1 else 'leases are'} held",
            reason=Reason.CONFLICT,
            hint="wait until they end, or end them with `calabash remote server down --force`",
        )
    for each in held:
        await broker.leases.end(each, why="server down")
    state.stop()
    return order


@get("/metrics", media_type="text/plain; version=0.0.4")
async def metrics(request: Asked) -> str:
    """Return the metrics in the Prometheus text format."""
    return _broker(request).metrics(_holder(request))


def _failure(request: Asked, error: Exception) -> Response:
    if isinstance(error, CalabashError):
        status_code = _STATUS.get(error.reason, 409)
        content = broker_messages.ServerFailure(reason=str(error.reason), message=error.message, hint=error.hint)
    elif isinstance(error, HTTPException):
        status_code = error.status_code
        reason = Reason.NOT_FOUND if status_code == 404 else Reason.BAD_REQUEST
        content = broker_messages.ServerFailure(
            reason=str(reason), message=error.detail, hint="check that client and server have the same version"
        )
    else:
        log.error("a request failed unexpectedly", exc_info=error)
        status_code = 500
        content = broker_messages.ServerFailure(
            reason="internal", message="internal error of the server", hint="see server.log on the server"
        )
    _broker(request).leases.counters.count("refusals_total", content.reason)
    return json_response(content, status_code)


async def _check_version(request: Asked) -> None:
    """Refuse a client of an unsupported version."""
    stated = request.headers.get(VERSION_HEADER, "")
    check_client_version(stated, request.scope["method"], request.scope["path_template"], server="the server")


def remote_application(broker: Broker, verifier: TokenVerifier, *, stop: Callable[[], None]) -> WebApplication:
    """Return the ASGI application; ``stop`` is called when the owner stops the server."""
    return WebApplication(
        [server, leases, lease, renew, release, drain, shutdown, metrics],
        failed=_failure,
        before=_check_version,
        state={"broker": broker, "verifier": verifier, "stop": stop},
    )
