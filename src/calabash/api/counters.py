"""Counters of a pool since its start, for monitoring: message types and the route."""

from __future__ import annotations

from typing import Any

from calabash.api import endpoints
from calabash.api.replies import Reply
from calabash.api.route import Route


class GpuTimeView(Reply, kw_only=True, frozen=True):
    """GPU time of a tenant or a project in seconds of whole devices: allocated, used, and allocated without use."""

    tenant: str
    project: str
    allocated_s: float
    used_s: float
    idle_s: float


class QueueWaitView(Reply, kw_only=True, frozen=True):
    """Histogram of the waiting times of a queue's requests until they were ``granted`` or ``not_granted``.

    ``counts`` has the number of requests in each range of ``wait_bounds_s``; the last item counts those above all bounds.
    """

    queue: str
    outcome: str
    counts: list[int]
    sum_s: float


class PoolCounters(Reply, kw_only=True, frozen=True):
    """Counters since the start of the pool. The values of ``projects`` are included in those of ``tenants``."""

    tenants: list[GpuTimeView]
    projects: list[GpuTimeView]
    wait_bounds_s: list[float]
    waits: list[QueueWaitView]


NO_COUNTERS = PoolCounters(tenants=[], projects=[], wait_bounds_s=[], waits=[])


SHOW_COUNTERS = Route(
    endpoint=endpoints.SHOW_COUNTERS,
    summary="Get GPU time and waiting times since the start of the pool",
    reply=PoolCounters,
    note="for users who may see the whole pool, because it covers all tenants",
)

COUNTERS: tuple[Route[Any], ...] = (SHOW_COUNTERS,)
