"""Routes of queues."""

from __future__ import annotations

from calabash.api import endpoints, replies, requests
from calabash.model.access import Action
from calabash.platform.handlers.request import (
    Asked,
    body_of,
    caller_of,
    guarantee_warnings_of,
    visibility_of,
    work,
)
from calabash.pool.handlers.context import pool_of
from calabash.transport.web.routing import handles


@handles(endpoints.LIST_QUEUES)
async def list_queues(request: Asked) -> replies.QueueList:
    pool, visibility = pool_of(request), visibility_of(request)
    found = await work(request, pool.queues.shown, pool.binder, visibility.queue)
    return replies.QueueList(items=[visibility.shown_queue(q) for q in found])


@handles(endpoints.PUT_QUEUE)
async def put_queue(request: Asked, name: str) -> replies.Named:
    pool, caller = pool_of(request), caller_of(request)
    pool.permission.require(caller.principal, Action.OPERATE, "change queues")
    name = requests.checked_name(name, what="queue")
    body = requests.decode(await body_of(request), requests.QueueSettings)
    await work(request, pool.queues.put_queue, name, body, pool.binder)
    await work(request, pool.binder.schedule)
    return replies.Named(name=name, warnings=await guarantee_warnings_of(request, body.guaranteed))


@handles(endpoints.DELETE_QUEUE)
async def delete_queue(request: Asked, name: str) -> replies.Named:
    pool, caller = pool_of(request), caller_of(request)
    pool.permission.require(caller.principal, Action.OPERATE, "change queues")
    await work(request, pool.queues.delete_queue, name, pool.binder)
    return replies.Named(name=name)


ADMINISTRATION = (list_queues, put_queue, delete_queue)
