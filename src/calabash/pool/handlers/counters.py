"""Route of the counters for monitoring."""

from __future__ import annotations

from calabash.api import endpoints
from calabash.api.counters import GpuTimeView, PoolCounters, QueueWaitView
from calabash.binder.local.wait_times import BOUNDS_S
from calabash.model.access import Action
from calabash.node.metering.usage_totals import GpuTime, Key
from calabash.platform.handlers.request import Asked, caller_of, work
from calabash.pool.handlers.context import pool_of
from calabash.pool.pool import Pool
from calabash.transport.web.routing import handles


@handles(endpoints.SHOW_COUNTERS)
async def show_counters(request: Asked) -> PoolCounters:
    pool, caller = pool_of(request), caller_of(request)
    pool.permission.require(caller.principal, Action.SEE_PLATFORM, "see counters of all tenants")
    return await work(request, _counters, pool)


def _counters(pool: Pool) -> PoolCounters:
    times = sorted(pool.agent.open_usage.totals().items())
    return PoolCounters(
        tenants=[_shown(key, time) for key, time in times if len(key) == 1],
        projects=[_shown(key, time) for key, time in times if len(key) > 1],
        wait_bounds_s=list(BOUNDS_S),
        waits=[
            QueueWaitView(queue=queue, outcome=outcome, counts=found.counts, sum_s=found.total)
            for queue, outcome, found in pool.binder.wait_times.all()
        ],
    )


def _shown(key: Key, time: GpuTime) -> GpuTimeView:
    return GpuTimeView(
        tenant=key[0],
        project=key[1] if len(key) > 1 else "",
        allocated_s=time.allocated_s,
        used_s=time.used_s,
        idle_s=time.idle_s,
    )


COUNTERS = (show_counters,)
