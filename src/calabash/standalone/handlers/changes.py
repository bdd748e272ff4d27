"""The route of changes: what there is to compare in a pool, and who may hear of it."""

from __future__ import annotations

from litestar import get

from calabash.api import requests
from calabash.api.changes import ChangeList, ChangePage
from calabash.model.access import tenants_seen
from calabash.standalone.changes import Key, PoolChanges, Trace
from calabash.standalone.handlers.asked import Asked, caller_of, pool_of
from calabash.standalone.pool import Pool

_KEPT = "calabash_changes"


@get("/v1/changes")
async def list_changes(request: Asked) -> ChangeList:
    who, pool = caller_of(request).principal, pool_of(request)
    page = requests.decode_query(dict(request.query_params), ChangePage)
    seen = tenants_seen(who)

    def visible(kind: str, trace: Trace) -> bool:
        if seen is None or kind == "devices" or trace.tenant in seen:
            return True
        return kind == "allocations" and pool.permission.owns(who, uid=trace.uid, user=trace.user)

    state = request.app.state
    if _KEPT not in state:
        state[_KEPT] = PoolChanges(lambda: _traces(pool))
    changes: PoolChanges = state[_KEPT]
    return await changes.after(page.after, wait_s=page.wait_s, visible=visible)


def _traces(pool: Pool) -> dict[Key, Trace]:
    """Everything that is watched, each with what is compared."""
    snapshot = pool.agent.snapshot()
    found: dict[Key, Trace] = {}
    for state in snapshot.devices:
        mark = (state.device.health, state.cause, state.mode, state.device.pinned, tuple(state.allocations))
        found["devices", str(state.device.index)] = Trace(mark=mark)
    for waiting in pool.binder.waiting():
        asker = waiting.requester
        trace = Trace(mark="pending", tenant=waiting.request.tenant, uid=asker.uid, user=asker.user)
        found["allocations", waiting.id] = trace
    for held in snapshot.allocations:
        record = held.record
        trace = Trace(mark=record.state, tenant=record.request.tenant, uid=record.uid, user=record.user)
        found["allocations", record.id] = trace
    for queue in pool.queues.shown(pool.binder, lambda _: True):
        found["queues", queue.name] = Trace(mark=queue, tenant=queue.name.partition("/")[0])
    return found


CHANGES = (list_changes,)
