"""Routes of one device: all users may read it, administrators change it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from calabash.api import devices as device_requests
from calabash.api import endpoints, replies, requests
from calabash.model.access import Action
from calabash.node.devices.settings import Wanted
from calabash.platform.handlers.request import Asked, body_of, caller_of, visibility_of, work
from calabash.pool.handlers.context import pool_of
from calabash.pool.pool import Pool
from calabash.pool.views import resources as views_resources
from calabash.transport.web.routing import handles


@handles(endpoints.SHOW_DEVICE)
async def show_device(request: Asked, device: str) -> replies.DeviceDetail:
    return await work(request, views_resources.device, pool_of(request).agent, device, visibility_of(request))


async def _changed(request: Asked, what: str, change: Callable[[Pool], Any]) -> Any:
    """Make a change in a thread and return its result. Raises NOT_PERMITTED unless the principal may operate devices."""
    pool, caller = pool_of(request), caller_of(request)
    pool.permission.require(caller.principal, Action.OPERATE, what)
    return await work(request, change, pool)


@handles(endpoints.DRAIN_DEVICE)
async def drain(request: Asked, device: str) -> replies.DeviceDetail:
    body = requests.decode(await body_of(request), device_requests.DrainOrder)

    def change(pool: Pool) -> replies.DeviceDetail:
        administration = pool.agent.administration
        administration.drain(
            administration.find(device), why=body.reason, evict_after_s=body.grace_s if body.evict else None
        )
        return views_resources.device(pool.agent, device, visibility_of(request))

    detail: replies.DeviceDetail = await _changed(request, "drain devices", change)
    return detail


@handles(endpoints.UNDRAIN_DEVICE)
async def undrain(request: Asked, device: str) -> replies.DeviceDetail:
    requests.decode(await body_of(request), requests.Nothing)

    def change(pool: Pool) -> replies.DeviceDetail:
        pool.agent.administration.undrain(pool.agent.administration.find(device))
        return views_resources.device(pool.agent, device, visibility_of(request))

    detail: replies.DeviceDetail = await _changed(request, "put devices back", change)
    return detail


@handles(endpoints.SET_DEVICE)
async def set_device(request: Asked, device: str) -> replies.DeviceDetail:
    body = requests.decode(await body_of(request), device_requests.DeviceSettings)
    wanted = Wanted(replicas=body.replicas, interval=body.interval, spill=body.spill)

    def change(pool: Pool) -> replies.DeviceDetail:
        pool.agent.administration.set(pool.agent.administration.find(device), wanted)
        return views_resources.device(pool.agent, device, visibility_of(request))

    detail: replies.DeviceDetail = await _changed(request, "set devices", change)
    return detail


@handles(endpoints.TEST_DEVICE)
async def test(request: Asked, device: str) -> replies.TestReply:
    requests.decode(await body_of(request), requests.Nothing)

    def change(pool: Pool) -> replies.TestReply:
        probed = pool.agent.administration.test(pool.agent.administration.find(device))
        return replies.TestReply(
            passed=probed.passed,
            why=probed.why,
            figures=dict(probed.figures),
            device=views_resources.device(pool.agent, device, visibility_of(request)),
        )

    answer: replies.TestReply = await _changed(request, "test devices", change)
    return answer


@handles(endpoints.RESET_DEVICE)
async def reset(request: Asked, device: str) -> replies.DeviceDetail:
    requests.decode(await body_of(request), requests.Nothing)

    def change(pool: Pool) -> replies.DeviceDetail:
        pool.agent.administration.reset(pool.agent.administration.find(device))
        return views_resources.device(pool.agent, device, visibility_of(request))

    detail: replies.DeviceDetail = await _changed(request, "reset devices", change)
    return detail


DEVICES = (show_device, drain, undrain, set_device, test, reset)
