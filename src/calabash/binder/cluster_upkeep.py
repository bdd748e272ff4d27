"""What happens to requests of a cluster from outside: who may be stopped changes, and others choose nodes."""

from __future__ import annotations

from dataclasses import replace

from calabash.binder.cluster import ClusterScheduler
from calabash.model.request import AllocationId
from calabash.sched import set_evictable as set_evictable_in


def set_evictable(cluster: ClusterScheduler, allocation: AllocationId, *, evictable: bool) -> None:
    """Whether what holds its place may be stopped for others; nothing when it holds none."""
    known = cluster.known.get(allocation)
    if known is not None and cluster.holds(allocation) and known.request.evictable is not evictable:
        known.request = replace(known.request, evictable=evictable)
        set_evictable_in(cluster.scheduler, allocation, evictable=evictable)
