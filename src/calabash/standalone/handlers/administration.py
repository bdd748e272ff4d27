"""Routes of queues."""

from __future__ import annotations

from litestar import delete, get, put

from calabash.api import replies, requests
from calabash.standalone.handlers.asked import Asked, body_of, caller_of, pool_of, work


@get("/v1/queues")
async def list_queues(request: Asked) -> replies.QueueList:
    caller_of(request)
    pool = pool_of(request)
    return replies.QueueList(items=await work(request, pool.queues.shown, pool.binder))


@put("/v1/queues/{name:path}")
async def put_queue(request: Asked, name: str) -> replies.Named:
    caller, name = caller_of(request), requests.checked_name(name.removeprefix("/"), what="queue")
    body = requests.decode(await body_of(request), requests.QueueSettings)
    await work(request, pool_of(request).put_queue, name, body, caller)
    return replies.Named(name=name)


@delete("/v1/queues/{name:path}", status_code=200)
async def delete_queue(request: Asked, name: str) -> replies.Named:
    caller, name = caller_of(request), name.removeprefix("/")
    await work(request, pool_of(request).delete_queue, name, caller)
    return replies.Named(name=name)


ADMINISTRATION = (list_queues, put_queue, delete_queue)
