"""The HTTP API: routes, peer identity, errors. Thin: every decision is the pool's.

Who asks is what the kernel says about the other end of the socket, never what the request says.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog
from litestar import Litestar, Request, Response, delete, get, post, put
from litestar.datastructures import State
from litestar.exceptions import HTTPException
from uvicorn.protocols.http.h11_impl import H11Protocol

import calabash
from calabash.model.allocation import QueueRecord
from calabash.model.errors import CalabashError, Reason
from calabash.model.names import NAME_HINT
from calabash.model.request import AllocationId
from calabash.seams.host.processes import Peer, peer_of
from calabash.seams.store import public_url
from calabash.standalone import views, wire
from calabash.standalone.pool import Granted, Pending, Pool

EVICTION_WAIT_S = 10.0

log = structlog.get_logger(__name__)

_STATUS = {
    Reason.BAD_REQUEST: 400,
    Reason.UNKNOWN_MODE: 400,
    Reason.NOT_PERMITTED: 403,
    Reason.NOT_FOUND: 404,
    Reason.POOL_DOWN: 503,
    Reason.STORE_UNAVAILABLE: 503,
    Reason.STORE_NEWER: 503,
    Reason.DISK_FULL: 507,
}


class PeerProtocol(H11Protocol):
    """uvicorn's HTTP/1.1 with the kernel's word on who is connected, as ``scope["client"] = ("uid:gid", pid)``."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        connection = transport.get_extra_info("socket")
        peer = peer_of(connection)
        self.client = (f"{peer.uid}:{peer.gid}", peer.pid)


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What the routes need besides the pool."""

    home: Path
    sim: str
    simulation: dict[str, str]  # environment that leads a program to the simulated node
    driver: str
    arbiter_pid: Callable[[], int]


def _peer(request: Request[Any, Any, Any]) -> Peer:
    client = request.scope["client"]
    if client is None:
        raise CalabashError("the connection has no peer", reason=Reason.NOT_PERMITTED)
    uid, _, gid = client[0].partition(":")
    return Peer(pid=client[1], uid=int(uid), gid=int(gid))


def _pool(state: State) -> Pool:
    pool: Pool = state.pool
    return pool


@get("/v1/status")
async def status(state: State) -> dict[str, Any]:
    pool, context = _pool(state), state.context
    devices = pool.agent.inventory.devices()
    return {
        "version": calabash.__version__,
        "pid": state.pid,
        "home": str(context.home),
        "node": pool.agent.node,
        "sim": context.sim,
        "db": public_url(pool.store.url),
        "started_at": state.started_at,
        "uptime_s": round(time.time() - state.started_at, 3),
        "devices": len(devices),
        "allocations": len(pool.agent.book.records()),
        "pending": len(pool.pending()),
        "driver": context.driver,
        "membership": pool.agent.membership.form,
        "arbiter_pid": context.arbiter_pid(),
    }


@get("/v1/devices")
async def list_devices(state: State) -> dict[str, Any]:
    return {"items": await asyncio.to_thread(views.devices, _pool(state).agent)}


@get("/v1/allocations")
async def list_allocations(state: State, request: Request[Any, Any, Any]) -> dict[str, Any]:
    ended = request.query_params.get("all", "") in {"1", "true"}
    return {"items": await asyncio.to_thread(views.allocations, _pool(state), ended=ended)}


@post("/v1/allocations", status_code=201)
async def allocate(state: State, request: Request[Any, Any, Any]) -> dict[str, Any]:
    pool = _pool(state)
    ask: wire.Ask = wire.decode(await _body(request), wire.Ask)
    peer = _peer(request)
    pending = await asyncio.to_thread(pool.submit, ask.request(), peer=peer, command=ask.command, wait=ask.wait_s > 0)
    # A request that others are just being evicted for is worth those seconds even to one who does not wait.
    wait_s = max(ask.wait_s, EVICTION_WAIT_S) if pool.bound(pending) else ask.wait_s
    try:
        answer = await _answer(pending, request, wait_s)
    except TimeoutError:
        why = await asyncio.to_thread(pool.why, pending.id)
        if await asyncio.to_thread(pool.cancel, pending, why=f"no room within {wait_s:g}s"):
            raise CalabashError(
                f"no room within {wait_s:g}s: {why['explanation']}",
                reason=Reason.TIMEOUT,
                hint="wait longer with --wait, or ask for less; see `calabash smi`",
            ) from None
        answer = await asyncio.wrap_future(pending.answer)
    except (_GoneError, asyncio.CancelledError):
        if not await asyncio.to_thread(pool.cancel, pending, why="the asker went away"):
            pool.give_back(pending, why="the asker went away")
        raise CalabashError("the asker went away", reason=Reason.CONFLICT) from None
    return views.granted(answer, state.context.simulation, pool.agent.membership.form)


class _GoneError(Exception):
    pass


async def _answer(pending: Pending, request: Request[Any, Any, Any], wait_s: float) -> Granted:
    """The grant, unless the time is over (TimeoutError) or the client hangs up first."""
    answer = asyncio.wrap_future(pending.answer)
    if answer.done() or pending.answer.done():
        return await answer
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        both: set[asyncio.Future[Any]] = {answer, gone}
        done, _ = await asyncio.wait(both, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        gone.cancel()
    if answer in done:
        return answer.result()
    if gone in done:
        raise _GoneError
    raise TimeoutError


async def _disconnected(request: Request[Any, Any, Any]) -> None:
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            return


@post("/v1/allocations/{allocation:str}/started", status_code=200)
async def started(state: State, request: Request[Any, Any, Any], allocation: str) -> dict[str, Any]:
    body: wire.Started = wire.decode(await _body(request), wire.Started)
    peer = _peer(request)
    record = await asyncio.to_thread(_pool(state).started, AllocationId(allocation), pid=body.pid, peer=peer)
    return {"id": record.id, "state": record.state}


@delete("/v1/allocations/{allocation:str}", status_code=200)
async def release(state: State, request: Request[Any, Any, Any], allocation: str) -> dict[str, Any]:
    force = request.query_params.get("force", "") in {"1", "true"}
    await asyncio.to_thread(_pool(state).release, AllocationId(allocation), peer=_peer(request), force=force)
    return {"id": allocation}


@get("/v1/allocations/{allocation:str}/why")
async def why(state: State, allocation: str) -> dict[str, Any]:
    return await asyncio.to_thread(_pool(state).why, AllocationId(allocation))


@get("/v1/queues")
async def list_queues(state: State) -> dict[str, Any]:
    return {"items": await asyncio.to_thread(_pool(state).queues)}


@put("/v1/queues/{name:path}")
async def put_queue(state: State, request: Request[Any, Any, Any], name: str) -> dict[str, Any]:
    body: wire.QueueBody = wire.decode(await _body(request), wire.QueueBody)
    name = name.removeprefix("/")  # a queue's name may have slashes, so it is the rest of the path
    if wire.QUEUE_NAME.match(name) is None:
        raise CalabashError(f"queue name {name!r} is not usable", hint=NAME_HINT)
    record = QueueRecord(name=name, parent=body.parent, deserved=body.deserved, limit=body.limit, weight=body.weight)
    await asyncio.to_thread(_pool(state).put_queue, record, peer=_peer(request))
    return {"name": name}


@delete("/v1/queues/{name:path}", status_code=200)
async def delete_queue(state: State, request: Request[Any, Any, Any], name: str) -> dict[str, Any]:
    name = name.removeprefix("/")
    await asyncio.to_thread(_pool(state).delete_queue, name, peer=_peer(request))
    return {"name": name}


@get("/v1/scenario")
async def scenario(state: State) -> dict[str, str]:
    return {"scenario": await asyncio.to_thread(_pool(state).scenario)}


@get("/v1/events")
async def list_events(state: State, request: Request[Any, Any, Any]) -> dict[str, Any]:
    text = request.query_params.get("after", "0")
    if not text.isdecimal() or len(text) > 18:
        raise CalabashError(f"after {text!r} is not an event number", hint="0 lists from the oldest")
    found = await asyncio.to_thread(_pool(state).store.events, after=int(text))
    return {
        "items": [
            {
                "id": e.id,
                "at": e.at,
                "kind": e.kind,
                "reason": e.reason,
                "allocation": e.allocation,
                "device": e.device,
                "message": e.message,
            }
            for e in found
        ]
    }


@post("/v1/shutdown", status_code=200)
async def shutdown(state: State, request: Request[Any, Any, Any]) -> dict[str, Any]:
    body: wire.Shutdown = wire.decode(await _body(request), wire.Shutdown)
    pool = _pool(state)
    pool.require_admin(_peer(request), "take the pool down")
    await asyncio.to_thread(pool.close, force=body.force)
    await _until_empty(pool)
    asyncio.get_running_loop().call_later(0.05, state.stop)
    return {"pid": state.pid}


async def _until_empty(pool: Pool) -> None:
    """Give programs that were told to end the time to do so (SIGKILL comes after 5 s)."""
    deadline = time.monotonic() + 8
    while pool.agent.book.records() and time.monotonic() < deadline:
        await asyncio.sleep(0.05)


async def _body(request: Request[Any, Any, Any]) -> bytes:
    """The whole body, bounded."""
    found = bytearray()
    async for chunk in _chunks(request):
        found += chunk
        if len(found) > wire.BODY_BYTES_MAX:
            raise CalabashError(
                f"the request body is larger than {wire.BODY_BYTES_MAX} bytes", hint="shorten the command line"
            )
    return bytes(found)


async def _chunks(request: Request[Any, Any, Any]) -> AsyncIterator[bytes]:
    while True:
        message: Any = await request.receive()
        if message["type"] == "http.disconnect":
            return
        yield bytes(message.get("body", b""))
        if not message.get("more_body", False):
            return


def _failure(_: Request[Any, Any, Any], error: Exception) -> Response[dict[str, str]]:
    if isinstance(error, CalabashError):
        status_code = _STATUS.get(error.reason, 409)
        content = {"reason": str(error.reason), "message": error.message, "hint": error.hint}
    elif isinstance(error, HTTPException):
        status_code = error.status_code
        reason = {404: Reason.NOT_FOUND, 405: Reason.BAD_REQUEST}.get(status_code, Reason.BAD_REQUEST)
        content = {"reason": str(reason), "message": error.detail, "hint": "see the API reference"}
    else:
        log.error("a request failed unexpectedly", exc_info=error)
        status_code = 500
        content = {"reason": "internal", "message": "the pool failed unexpectedly", "hint": "see pool.log"}
    return Response(content=content, status_code=status_code, media_type="application/json")


ROUTES = (
    status,
    list_devices,
    list_allocations,
    allocate,
    started,
    release,
    why,
    list_queues,
    put_queue,
    delete_queue,
    scenario,
    list_events,
    shutdown,
)


def application(pool: Pool, context: Context, *, stop: Callable[[], None]) -> Litestar:
    """The ASGI application."""
    return Litestar(
        route_handlers=list(ROUTES),
        state=State({"pool": pool, "context": context, "stop": stop, "pid": os.getpid(), "started_at": time.time()}),
        exception_handlers={Exception: _failure},
        openapi_config=None,
        request_max_body_size=None,  # bounded where it is read
        logging_config=None,
    )
