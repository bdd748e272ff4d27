"""Read the state of all objects of a pool that the change feed compares, to find those that have changed."""

from __future__ import annotations

from calabash.platform.http.change_feed import Key, Trace
from calabash.pool.pool import Pool


def traces(pool: Pool) -> dict[Key, Trace]:
    """Return a trace (compared state and owner) of each device, request, allocation and queue, by kind and name."""
    found: dict[Key, Trace] = {}
    for state in pool.agent.devices():
        mark = (state.device.health, state.cause, state.mode, state.device.pinned, tuple(state.allocations))
        found["devices", str(state.device.index)] = Trace(mark=mark)
    for waiting in pool.binder.waiting():
        asker = waiting.requester
        trace = Trace(mark="pending", tenant=waiting.request.tenant, uid=asker.uid, user=asker.user)
        found["allocations", waiting.id] = trace
    for record in pool.agent.records():
        trace = Trace(mark=record.state, tenant=record.request.tenant, uid=record.uid, user=record.user)
        found["allocations", record.id] = trace
    for queue in pool.queues.shown(pool.binder, lambda _: True):
        found["queues", queue.name] = Trace(mark=queue, tenant=queue.name.partition("/")[0])
    return found
