"""The HTTP API: routes and errors. Thin: every decision is the pool's.

Who asks is what the kernel says about the other end of the socket, never what the request says.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import structlog
from litestar import Litestar, Request, Response, delete, get, post, put
from litestar.datastructures import State
from litestar.exceptions import HTTPException

import calabash
from calabash.agent.node import Grant
from calabash.api import replies, requests
from calabash.binder.requests import WaitingRequest
from calabash.model.allocation import AllocationState
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import AllocationId
from calabash.seams.store import public_url
from calabash.standalone import views
from calabash.standalone.fairness import Fairness
from calabash.standalone.pool import Caller, Pool
from calabash.standalone.serving import connection_of

EVICTION_WAIT_S = 10.0
BODY_S = 10.0
RELEASE_S = 8.0  # SIGKILL comes after 5
POLL_S = 0.02
SETTLE_S = 2.0

Given = ParamSpec("Given")
Answer = TypeVar("Answer")
Asked = Request[Any, Any, Any]

log = structlog.get_logger(__name__)

_STATUS = {
    Reason.BAD_REQUEST: 400,
    Reason.UNKNOWN_MODE: 400,
    Reason.NOT_PERMITTED: 403,
    Reason.NOT_FOUND: 404,
    Reason.USER_LIMIT: 429,
    Reason.POOL_DOWN: 503,
    Reason.STORE_UNAVAILABLE: 503,
    Reason.STORE_NEWER: 503,
    Reason.DISK_FULL: 507,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What the routes need besides the pool."""

    home: Path
    sim: str
    simulation: dict[str, str]  # environment that leads a program to the simulated node
    driver: str
    arbiter_pid: Callable[[], int]
    fairness: Fairness


def _caller(request: Asked) -> Caller:
    """Who asks. Raises NOT_PERMITTED when this pool does not serve that user."""
    caller = connection_of(request.scope).caller
    if caller is None:
        raise CalabashError("the connection has no peer", reason=Reason.NOT_PERMITTED)
    _pool(request).permission.require_served(caller.peer)
    return caller


def _pool(request: Asked) -> Pool:
    pool: Pool = request.app.state.pool
    return pool


async def _work(request: Asked, call: Callable[Given, Answer], *given: Given.args, **named: Given.kwargs) -> Answer:
    """In a worker thread, when this user has not too many there already."""
    context: Context = request.app.state.context
    caller = connection_of(request.scope).caller
    assert caller is not None
    async with context.fairness.work(caller.peer.uid):
        with structlog.contextvars.bound_contextvars(uid=caller.peer.uid):
            return await asyncio.to_thread(call, *given, **named)


@get("/v1/status")
async def status(state: State) -> replies.Status:
    pool, context = state.pool, state.context
    snapshot = pool.agent.snapshot()
    return replies.Status(
        version=calabash.__version__,
        pid=state.pid,
        home=str(context.home),
        node=snapshot.node,
        sim=context.sim,
        db=public_url(pool.store.url),
        started_at=state.started_at,
        uptime_s=round(time.time() - state.started_at, 3),
        devices=len(snapshot.devices),
        allocations=len(snapshot.allocations),
        pending=len(pool.binder.waiting()),
        driver=context.driver,
        arbiter_pid=context.arbiter_pid(),
        membership=snapshot.membership,
        serves=pool.permission.serves(),
    )


@get("/v1/devices")
async def list_devices(request: Asked) -> replies.DeviceList:
    _caller(request)
    return await _work(request, views.devices, _pool(request).agent)


@get("/v1/allocations")
async def list_allocations(request: Asked) -> replies.AllocationList:
    _caller(request)
    page = requests.decode_query(dict(request.query_params), requests.AllocationPage)
    return await _work(request, views.allocations, _pool(request), page)


@post("/v1/allocations", status_code=201)
async def allocate(state: State, request: Asked) -> replies.GrantReply:
    pool, caller = _pool(request), _caller(request)
    wanted = requests.decode(await _body(request), requests.AllocationRequest)
    waiting = await _work(request, pool.submit, wanted, caller)
    granted = await _granted(request, waiting, wanted.wait_s)
    shown = granted.record.state
    if wanted.enter and state.membership == "kernel":
        try:
            shown = (await _work(request, pool.enter, waiting.id, caller.process)).state
        except BaseException:
            pool.give_back(waiting, why="the program could not enter")
            raise
    return views.granted(granted, state.context.simulation, state=shown)


async def _granted(request: Asked, waiting: WaitingRequest, wait_s: float) -> Grant:
    """The grant; the request is withdrawn when the time is over or its caller hangs up."""
    pool = _pool(request)
    # A request that others are just being evicted for is worth those seconds even to one who does not wait.
    wait_s = max(wait_s, EVICTION_WAIT_S) if pool.binder.bound(waiting) else wait_s
    try:
        return await _answer(waiting, request, wait_s)
    except TimeoutError:
        why = await _work(request, pool.explanations.why, waiting.id)
        if await _work(request, pool.cancel, waiting, why=f"no room within {wait_s:g}s"):
            raise CalabashError(
                f"no room within {wait_s:g}s: {why.explanation}",
                reason=Reason.TIMEOUT,
                hint="wait longer with --wait, or ask for less; see `calabash smi`",
            ) from None
        return await asyncio.wrap_future(waiting.answer)
    except (_GoneError, asyncio.CancelledError):
        if not await _work(request, pool.cancel, waiting, why="the caller went away"):
            pool.give_back(waiting, why="the caller went away")
        raise CalabashError("the caller went away", reason=Reason.CONFLICT) from None


class _GoneError(Exception):
    pass


async def _answer(waiting: WaitingRequest, request: Asked, wait_s: float) -> Grant:
    """The grant, unless the time is over (TimeoutError) or the client hangs up first."""
    answer = asyncio.wrap_future(waiting.answer)
    if answer.done() or waiting.answer.done():
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


async def _disconnected(request: Asked) -> None:
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            return


@post("/v1/allocations/{allocation:str}/started", status_code=200)
async def started(request: Asked, allocation: str) -> replies.StateReply:
    caller, name = _caller(request), AllocationId(requests.checked_id(allocation))
    body = requests.decode(await _body(request), requests.StartedReport)
    record = await _work(request, _pool(request).started, name, pid=body.pid, caller=caller)
    return replies.StateReply(id=record.id, state=record.state)


@delete("/v1/allocations/{allocation:str}", status_code=200)
async def release(request: Asked, allocation: str) -> replies.StateReply:
    """Forced, it answers when the devices are free again."""
    pool, caller, name = _pool(request), _caller(request), AllocationId(requests.checked_id(allocation))
    how = requests.decode_query(dict(request.query_params), requests.Release)
    shown = await _work(request, pool.release, name, caller=caller, force=how.force)
    deadline = time.monotonic() + (RELEASE_S if how.force else 0.0)
    while shown == "ending" and time.monotonic() < deadline:
        await asyncio.sleep(POLL_S)
        shown = "ending" if pool.agent.record(name) is not None else "released"
    if shown == "ending" and how.force:
        raise await _work(request, pool.what_holds, name)
    return replies.StateReply(id=name, state=shown)


@get("/v1/allocations/{allocation:str}/why")
async def why(request: Asked, allocation: str) -> replies.WhyReply:
    _caller(request)
    return await _work(request, _pool(request).explanations.why, AllocationId(requests.checked_id(allocation)))


@get("/v1/queues")
async def list_queues(request: Asked) -> replies.QueueList:
    _caller(request)
    pool = _pool(request)
    return replies.QueueList(items=await _work(request, pool.queues.shown, pool.binder))


@put("/v1/queues/{name:path}")
async def put_queue(request: Asked, name: str) -> replies.Named:
    caller, name = _caller(request), requests.checked_name(name.removeprefix("/"), what="queue")
    body = requests.decode(await _body(request), requests.QueueSettings)
    await _work(request, _pool(request).put_queue, name, body, caller)
    return replies.Named(name=name)


@delete("/v1/queues/{name:path}", status_code=200)
async def delete_queue(request: Asked, name: str) -> replies.Named:
    caller, name = _caller(request), name.removeprefix("/")
    await _work(request, _pool(request).delete_queue, name, caller)
    return replies.Named(name=name)


@get("/v1/tenants")
async def list_tenants(request: Asked) -> replies.TenantList:
    _caller(request)
    return replies.TenantList(items=await _work(request, _pool(request).queues.tenants))


@put("/v1/tenants/{name:path}")
async def put_tenant(request: Asked, name: str) -> replies.Named:
    caller, name = _caller(request), requests.checked_name(name.removeprefix("/"), what="tenant")
    body = requests.decode(await _body(request), requests.TenantSettings)
    await _work(request, _pool(request).put_tenant, name, body, caller)
    return replies.Named(name=name)


@delete("/v1/tenants/{name:path}", status_code=200)
async def delete_tenant(request: Asked, name: str) -> replies.Named:
    caller, name = _caller(request), name.removeprefix("/")
    await _work(request, _pool(request).delete_tenant, name, caller)
    return replies.Named(name=name)


@get("/v1/scenario")
async def scenario(request: Asked) -> replies.ScenarioText:
    _caller(request)
    return replies.ScenarioText(scenario=await _work(request, _pool(request).scenario))


@get("/v1/events")
async def list_events(request: Asked) -> replies.EventList:
    _caller(request)
    page = requests.decode_query(dict(request.query_params), requests.EventPage)
    return await _work(request, views.events, _pool(request).store, page)


@post("/v1/shutdown", status_code=200)
async def shutdown(state: State, request: Asked) -> replies.Stopping:
    pool, caller = _pool(request), _caller(request)
    body = requests.decode(await _body(request), requests.Shutdown)
    pool.permission.require_administrator(caller.peer, "take the pool down")
    if not body.force:
        await _until_settled(pool)
    await asyncio.to_thread(pool.close, force=body.force)
    await _until_empty(pool)
    asyncio.get_running_loop().call_later(0.05, state.stop)
    return replies.Stopping(pid=state.pid)


async def _until_settled(pool: Pool) -> None:
    """Whose programs have ended is released in a moment; only what is in use is in the way of going down."""
    deadline = time.monotonic() + SETTLE_S
    while pool.agent.records() and time.monotonic() < deadline:
        if await asyncio.to_thread(_in_use, pool):
            return
        await asyncio.sleep(POLL_S)


def _in_use(pool: Pool) -> bool:
    found = pool.agent.snapshot(processes=True).allocations
    return any(a.processes or a.record.state is AllocationState.GRANTED for a in found)


async def _until_empty(pool: Pool) -> None:
    """Give programs that were told to end the time to do so."""
    deadline = time.monotonic() + RELEASE_S
    while pool.agent.records() and time.monotonic() < deadline:
        await asyncio.sleep(POLL_S)


async def _body(request: Asked) -> bytes:
    """The whole body, bounded in size and time."""
    found = bytearray()
    try:
        async with asyncio.timeout(BODY_S):
            async for chunk in _chunks(request):
                found += chunk
                if len(found) > requests.BODY_BYTES_MAX:
                    raise CalabashError(
                        f"the request body is larger than {requests.BODY_BYTES_MAX} bytes",
                        hint="shorten the command line",
                    )
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


def _failure(_: Asked, error: Exception) -> Response[replies.Failure]:
    if isinstance(error, CalabashError):
        status_code = _STATUS.get(error.reason, 409)
        content = replies.Failure(reason=str(error.reason), message=error.message, hint=error.hint)
    elif isinstance(error, HTTPException):
        status_code = error.status_code
        reason = {404: Reason.NOT_FOUND, 405: Reason.BAD_REQUEST}.get(status_code, Reason.BAD_REQUEST)
        content = replies.Failure(reason=str(reason), message=error.detail, hint="see the API reference")
    else:
        log.error("a request failed unexpectedly", exc_info=error)
        status_code = 500
        content = replies.Failure(reason="internal", message="the pool failed unexpectedly", hint="see pool.log")
    return Response(content=content, status_code=status_code, media_type="application/json")


HANDLERS = (
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
    list_tenants,
    put_tenant,
    delete_tenant,
    scenario,
    list_events,
    shutdown,
)


def application(pool: Pool, context: Context, *, stop: Callable[[], None]) -> Litestar:
    """The ASGI application."""
    state = {
        "pool": pool,
        "context": context,
        "stop": stop,
        "pid": os.getpid(),
        "started_at": time.time(),
        "membership": pool.agent.snapshot().membership,
    }
    return Litestar(
        route_handlers=list(HANDLERS),
        state=State(state),
        exception_handlers={Exception: _failure},
        openapi_config=None,
        request_max_body_size=None,  # bounded where it is read
        logging_config=None,
    )
