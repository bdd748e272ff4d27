"""Routes of what administrators set: queues and tenants are listed, put and deleted alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from litestar import delete, get, put
from litestar.handlers import HTTPRouteHandler

from calabash.api import replies, requests
from calabash.standalone.handlers.asked import Asked, body_of, caller_of, pool_of, work
from calabash.standalone.pool import Caller, Pool

Settings = TypeVar("Settings", requests.QueueSettings, requests.TenantSettings)


@get("/v1/queues")
async def list_queues(request: Asked) -> replies.QueueList:
    caller_of(request)
    pool = pool_of(request)
    return replies.QueueList(items=await work(request, pool.queues.shown, pool.binder))


@get("/v1/tenants")
async def list_tenants(request: Asked) -> replies.TenantList:
    caller_of(request)
    return replies.TenantList(items=await work(request, pool_of(request).queues.tenants))


def _set_by_name(
    what: str,
    settings: type[Settings],
    change: Callable[[Pool, str, Settings, Caller], None],
    remove: Callable[[Pool, str, Caller], None],
) -> tuple[HTTPRouteHandler, HTTPRouteHandler]:
    """The two routes that change and delete one of a kind."""
    path = f"/v1/{what}s/{{name:path}}"

    @put(path)
    async def put_one(request: Asked, name: str) -> replies.Named:
        caller, name = caller_of(request), requests.checked_name(name.removeprefix("/"), what=what)
        body = requests.decode(await body_of(request), settings)
        await work(request, change, pool_of(request), name, body, caller)
        return replies.Named(name=name)

    @delete(path, status_code=200)
    async def delete_one(request: Asked, name: str) -> replies.Named:
        caller, name = caller_of(request), name.removeprefix("/")
        await work(request, remove, pool_of(request), name, caller)
        return replies.Named(name=name)

    return put_one, delete_one


ADMINISTRATION = (
    list_queues,
    *_set_by_name("queue", requests.QueueSettings, Pool.put_queue, Pool.delete_queue),
    list_tenants,
    *_set_by_name("tenant", requests.TenantSettings, Pool.put_tenant, Pool.delete_tenant),
)
