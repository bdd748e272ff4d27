"""Routes of allocations: request, wait, enter, renew, move, release, and explain."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import Future
from functools import partial
from typing import Any

from calabash.api import endpoints, replies, requests
from calabash.binder.local.requests import WaitingRequest
from calabash.model.allocation import AllocationRecord
from calabash.model.errors import CalabashError, Reason
from calabash.model.messages import Message
from calabash.model.request import AllocationId
from calabash.node.agent import Grant
from calabash.platform.access.caller import Caller
from calabash.platform.access.permission import not_found
from calabash.platform.handlers.request import (
    Asked,
    Session,
    body_of,
    caller_of,
    session_of,
    visibility_of,
    work,
)
from calabash.pool.handlers.context import pool_of
from calabash.pool.handlers.ready import until_nothing_lacks
from calabash.pool.pool import Pool
from calabash.pool.queue_moves import move
from calabash.pool.views import resources as views_resources
from calabash.transport.web.application import State
from calabash.transport.web.routing import handles

EVICTION_WAIT_S = 10.0
LEAVING_WAIT_S = 1.0  # longest wait of a request without --wait while ended programs release their devices
RELEASE_S = 8.0  # SIGKILL comes after 5
POLL_S = 0.02


@handles(endpoints.LIST_ALLOCATIONS)
async def list_allocations(request: Asked) -> replies.AllocationList:
    visibility = visibility_of(request)
    page = requests.decode_query(request.query, requests.AllocationPage)
    process = caller_of(request).process
    pid = (process.pid if process else -1) if page.mine else 0
    return await work(request, views_resources.allocations, pool_of(request), page, visibility, pid)


@handles(endpoints.ALLOCATE)
async def allocate(state: State, request: Asked) -> replies.GrantReply:
    pool, session = pool_of(request), session_of(request)
    caller = session.caller
    wanted = requests.decode(await body_of(request), requests.AllocationRequest)
    if not wanted.standing or wanted.enter:  # a standing allocation has no program on this machine
        pool.permission.require_process(caller.principal, "request a slice for a program")
    waiting = await session.work(pool.submit, wanted, caller)
    granted = await _granted(pool, session, waiting, wanted.wait_s)
    shown, entry_socket = granted.record.state, ""
    if granted.record.request.ports:
        try:
            await until_nothing_lacks(session, partial(pool.ports.lacks, granted))
        except BaseException:
            pool.give_back(waiting, why="its ports do not work")
            raise
    if wanted.enter and granted.record.request.ports:
        try:
            entry_socket = await session.work(pool.ports.entry_socket, granted)
        except BaseException:
            pool.give_back(waiting, why="the way to its ports could not be opened")
            raise
    elif wanted.enter and state.membership == "kernel" and not granted.edits.worker_socket:
        shown = (await _entered(pool, session, waiting)).state
    return views_resources.granted(
        granted, state.context.simulation, session.visibility, state=shown, entry_socket=entry_socket
    )


async def _entered(pool: Pool, session: Session, waiting: WaitingRequest) -> AllocationRecord:
    """Make the client the program of its allocation; end the allocation if that fails.

    A server that shuts down cancels its requests, but not their worker threads. Such a thread may have just made the client a
    member of the allocation, whose end would end the client. So an operation that has begun is waited for; it takes some
    milliseconds.
    """
    outcome: Future[AllocationRecord] = Future()

    def enter() -> None:
        if outcome.set_running_or_notify_cancel():
            try:
                outcome.set_result(pool.enter(waiting.id, session.caller.process))
            except BaseException as error:
                outcome.set_exception(error)

    try:
        try:
            await session.work(enter)
        except asyncio.CancelledError:
            if outcome.cancel():
                raise
        return outcome.result()
    except BaseException:
        pool.give_back(waiting, why="the program could not enter")
        raise


async def _granted(pool: Pool, session: Session, waiting: WaitingRequest, wait_s: float) -> Grant:
    """Wait for the grant of a request and return it; cancel the request after ``wait_s`` or if its client disconnects.

    Args:
        wait_s: seconds that the client is willing to wait; 0 if the request does not wait. A request that does not wait
            still waits up to LEAVING_WAIT_S seconds for devices of ended programs, and up to EVICTION_WAIT_S seconds if
            allocations are being evicted for it.
    """
    # If allocations are being evicted for the request, even one without --wait waits for that.
    wait_s = max(wait_s, EVICTION_WAIT_S) if pool.binder.is_placed(waiting) else wait_s
    try:
        return await _answer(waiting, session.request, wait_s or LEAVING_WAIT_S)
    except TimeoutError:
        if wait_s <= 0:
            await session.work(pool.refuse, waiting)
        why = await session.work(pool.explanations.explain, waiting.id)
        if await session.work(pool.cancel, waiting, why=f"no room within {wait_s:g}s"):
            raise CalabashError(
                Message("no room within {wait_s:g}s: {explanation}", wait_s=wait_s, explanation=why.text),
                reason=Reason.TIMEOUT,
                hint="wait longer with --wait, or ask for less; see `calabash smi`",
            ) from None
        return await asyncio.wrap_future(waiting.answer)
    except (_GoneError, asyncio.CancelledError) as error:
        ending = isinstance(error, asyncio.CancelledError)  # the server ends; the client is still connected
        why_gone = "the pool is going down" if ending else "the caller went away"
        if not await session.work(pool.cancel, waiting, why=why_gone):
            pool.give_back(waiting, why=why_gone)
        reason, hint = (Reason.POOL_DOWN, "ask again when it is up") if ending else (Reason.CONFLICT, "")
        raise CalabashError(why_gone, reason=reason, hint=hint) from None


class _GoneError(Exception):
    pass


async def _answer(waiting: WaitingRequest, request: Asked, wait_s: float) -> Grant:
    """Return the grant. Raises TimeoutError after ``wait_s`` seconds, _GoneError if the client disconnects first."""
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


@handles(endpoints.REPORT_START)
async def started(request: Asked, allocation: str) -> replies.StateReply:
    caller, name = caller_of(request), AllocationId(requests.checked_id(allocation))
    body = requests.decode(await body_of(request), requests.StartedReport)
    record = await work(request, pool_of(request).started, name, pid=body.pid, caller=caller)
    return replies.StateReply(id=record.id, state=record.state)


@handles(endpoints.RENEW_ALLOCATION)
async def renew(request: Asked, allocation: str) -> replies.KeptReply:
    caller, name = caller_of(request), AllocationId(requests.checked_id(allocation))
    requests.decode(await body_of(request), requests.Nothing)
    return replies.KeptReply(id=name, keep_s=await work(request, pool_of(request).renew, name, caller=caller))


@handles(endpoints.CHANGE_QUEUE)
async def change_queue(request: Asked, allocation: str, name: str) -> replies.MovedReply:
    pool, caller, moved = pool_of(request), caller_of(request), AllocationId(requests.checked_id(allocation))
    wanted = requests.checked_name(name, what="queue")
    return replies.MovedReply(id=moved, queue=await work(request, move, pool, moved, wanted, caller))


@handles(endpoints.RELEASE)
async def release(request: Asked, allocation: str) -> replies.StateReply:
    """Release an allocation; a forced release waits up to RELEASE_S seconds until its devices are free."""
    pool, caller, name = pool_of(request), caller_of(request), AllocationId(requests.checked_id(allocation))
    how = requests.decode_query(request.query, requests.Release)
    shown = await work(request, pool.release, name, caller=caller, force=how.force)
    deadline = time.monotonic() + (RELEASE_S if how.force else 0.0)
    while shown == "ending" and time.monotonic() < deadline:
        await asyncio.sleep(POLL_S)
        shown = "ending" if pool.agent.record(name) is not None else "released"
    if shown == "ending" and how.force:
        raise await work(request, pool.still_held_error, name)
    return replies.StateReply(id=name, state=shown)


@handles(endpoints.SHOW_ENVIRONMENT)
async def environment(state: State, request: Asked, allocation: str) -> replies.GrantReply:
    caller, name = caller_of(request), AllocationId(requests.checked_id(allocation))
    granted = await work(request, _granted_before, pool_of(request), name, caller)
    return views_resources.granted(
        granted, state.context.simulation, visibility_of(request), state=granted.record.state
    )


def _granted_before(pool: Pool, allocation: AllocationId, caller: Caller) -> Grant:
    # Checked first, so that a token does not learn whether the allocation exists.
    pool.permission.require_process(caller.principal, "read the environment of a program of this machine")
    record = pool.agent.record(allocation)
    if record is None:
        raise not_found(allocation)
    request = record.request
    pool.permission.require_owner(
        caller.principal, record.id, uid=record.uid, user=record.user, tenant=request.tenant, queue=request.queue
    )
    return pool.agent.grant(record)  # idempotent: returns the grant again


@handles(endpoints.EXPLAIN)
async def explain(request: Asked, allocation: str) -> replies.WhyReply:
    visibility, name = visibility_of(request), AllocationId(requests.checked_id(allocation))
    if not await work(request, visibility.allocation, name):
        raise not_found(name)
    return views_resources.view_explanation(
        await work(request, pool_of(request).explanations.explain, name), visibility
    )


ALLOCATIONS = (list_allocations, allocate, started, renew, change_queue, release, environment, explain)
