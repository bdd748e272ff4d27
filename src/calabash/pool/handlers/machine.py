"""Routes of the machine and its pool: status, devices, events, scenario and shutdown."""

from __future__ import annotations

import asyncio
import time

import calabash
from calabash.adapters.store import public_url
from calabash.api import endpoints, replies, requests
from calabash.model.access import Action
from calabash.model.allocation import AllocationState
from calabash.model.errors import CalabashError
from calabash.platform.access.visibility import Visibility
from calabash.platform.handlers.request import Asked, body_of, caller_of, principal_of, visibility_of, work
from calabash.pool.handlers.allocations import POLL_S, RELEASE_S
from calabash.pool.handlers.context import pool_of
from calabash.pool.pool import Pool
from calabash.pool.views import resources as views_resources
from calabash.transport.web.application import State
from calabash.transport.web.routing import handles

SETTLE_S = 2.0


@handles(endpoints.SHOW_STATUS)
async def status(state: State, request: Asked) -> replies.Status:
    """Return the status of the pool, also to users of the machine whom the pool does not serve."""
    pool, context = state.pool, state.context
    visibility = pool.visibility(principal_of(request))
    held, waiting = await work(request, _counts, pool, visibility)
    return replies.Status(
        version=calabash.__version__,
        pid=state.pid,
        home=str(context.home),
        node=pool.agent.node,
        sim=context.sim,
        db=public_url(pool.store.url) if visibility.all else "",
        started_at=state.started_at,
        uptime_s=round(time.time() - state.started_at, 3),
        devices=len(pool.agent.devices()),
        allocations=held,
        pending=waiting,
        driver=context.driver,
        arbiter_pid=context.arbiter_pid(),
        membership=state.membership,
        serves=pool.permission.serves(),
        console=context.console,
        console_failure=context.console_failure,
    )


def _counts(pool: Pool, visibility: Visibility) -> tuple[int, int]:
    """Return the numbers of visible allocations and visible waiting requests."""
    held = sum(visibility.record(record) for record in pool.agent.records())
    return held, sum(views_resources.is_visible(w, visibility) for w in pool.binder.waiting())


@handles(endpoints.LIST_DEVICES)
async def list_devices(request: Asked) -> replies.DeviceList:
    return await work(request, views_resources.devices, pool_of(request).agent, visibility_of(request))


@handles(endpoints.EXPORT_SCENARIO)
async def scenario(request: Asked) -> replies.ScenarioText:
    pool, caller = pool_of(request), caller_of(request)
    pool.permission.require(caller.principal, Action.SEE_PLATFORM, "read the scheduler's state of all tenants")
    return replies.ScenarioText(scenario=await work(request, pool.scenario))


@handles(endpoints.LIST_EVENTS)
async def list_events(request: Asked) -> replies.EventList:
    visibility = visibility_of(request)
    page = requests.decode_query(request.query, requests.EventPage)
    return await work(request, views_resources.events, pool_of(request).store, page, visibility)


@handles(endpoints.SHUT_DOWN)
async def shutdown(state: State, request: Asked) -> replies.Stopping:
    """Stop the pool. Raises BAD_REQUEST if programs are to be ended and to be kept."""
    pool, caller = pool_of(request), caller_of(request)
    body = requests.decode(await body_of(request), requests.Shutdown)
    pool.permission.require(caller.principal, Action.SHUT_DOWN, "take the pool down")
    if body.force and body.keep_programs:
        raise CalabashError("force ends programs and keep_programs keeps them", hint="give one of the two")
    if not body.keep_programs:  # else as if a service manager stopped the pool
        if not body.force:
            await _until_settled(pool)
        await asyncio.to_thread(pool.close, force=body.force)
        await _until_empty(pool)
    asyncio.get_running_loop().call_later(0.05, state.stop)
    return replies.Stopping(pid=state.pid)


async def _until_settled(pool: Pool) -> None:
    """Wait up to SETTLE_S seconds until allocations whose programs have ended are released.

    Return at once if an allocation has a process, or waits for the start of its program: it will not be released.
    """
    deadline = time.monotonic() + SETTLE_S
    while pool.agent.records() and time.monotonic() < deadline:
        if await asyncio.to_thread(_in_use, pool):
            return
        await asyncio.sleep(POLL_S)


def _in_use(pool: Pool) -> bool:
    found = pool.agent.snapshot(processes=True).allocations
    return any(a.processes or a.record.state is AllocationState.GRANTED for a in found)


async def _until_empty(pool: Pool) -> None:
    """Wait up to RELEASE_S seconds until all allocations are released."""
    deadline = time.monotonic() + RELEASE_S
    while pool.agent.records() and time.monotonic() < deadline:
        await asyncio.sleep(POLL_S)


MACHINE = (status, list_devices, scenario, list_events, shutdown)
