"""Counters of a pool since its start, for monitoring."""

from __future__ import annotations

from calabash.api.replies import Reply
from calabash.api.route import Route


class GpuTimeView(Reply, kw_only=True, frozen=True):
    """Seconds of whole devices that a tenant, or a project of it, was allocated, used, and had without any use."""

    tenant: str
    project: str
    allocated_s: float
    used_s: float
    idle_s: float


class QueueWaitView(Reply, kw_only=True, frozen=True):
    """Waiting times of requests of a queue until they were ``granted`` or ``not_granted``. ``counts`` has the requests up to
    each bound and above the one before, and last those above all bounds."""

    queue: str
    outcome: str
    counts: list[int]
    sum_s: float


class PoolCounters(Reply, kw_only=True, frozen=True):
    """Counters since the start of the pool, when they were 0. ``projects`` are parts of ``tenants``."""

    tenants: list[GpuTimeView]
    projects: list[GpuTimeView]
    wait_bounds_s: list[float]
    waits: list[QueueWaitView]


NO_COUNTERS = PoolCounters(tenants=[], projects=[], wait_bounds_s=[], waits=[])


COUNTERS = (
    Route(
        method="GET",
        path="/v1/counters",
        summary="GPU time and waiting times since the start of the pool",
        reply=PoolCounters,
        note="of all tenants, so for those who see the whole pool",
    ),
)
