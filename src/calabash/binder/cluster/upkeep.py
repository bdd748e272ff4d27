"""Changes of cluster requests from outside the scheduler: evictability, starts on given nodes, and free devices."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace

from calabash.binder.cluster.cluster import BundleRequest, ClusterScheduler, KnownBundle, StartBundle, queued
from calabash.binder.cluster.device_kinds import PlacementConstraints
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import AllocationId
from calabash.sched import WHOLE_MILLI, Bind
from calabash.sched import set_evictable as set_evictable_in


def set_evictable(
    cluster: ClusterScheduler, allocation: AllocationId, *, evictable: bool, guarded: bool = False
) -> None:
    """Set whether a placed allocation may be evicted. Does nothing if it holds no devices.

    Args:
        evictable: True if the allocation may be evicted in favor of other requests.
        guarded: True to forbid the eviction of an evictable allocation while it is within the guaranteed amount of its
            queue; see ``sched.Request``.
    """
    known = cluster.known.get(allocation)
    if known is None or not cluster.holds(allocation):
        return
    if (known.request.evictable, known.request.guarded) != (evictable, guarded):
        known.request = replace(known.request, evictable=evictable, guarded=guarded)
        set_evictable_in(cluster.scheduler, allocation, evictable=evictable, guarded=guarded)


def start_on(
    cluster: ClusterScheduler, request: BundleRequest, nodes: Iterable[str], now_s: float, *, bound: bool = False
) -> StartBundle | None:
    """Start a request at once on the best of these nodes; None if no node has the devices free.

    The limits of its queue are respected, but the order of the requests in the queue is not.

    Args:
        bound: the pod is already bound to the node, so taints, labels and cordons are ignored.

    Raises CalabashError: no kind of device can serve the request, or QUEUE_OVER_LIMIT.
    """
    scheduler = cluster.scheduler
    arrays = scheduler.cluster
    constraints = PlacementConstraints(tolerations=frozenset("*")) if bound else request.constraints
    rows = [row for name in nodes if (row := arrays.row_of.get(name)) is not None]
    cordoned = [row for row in rows if bound and not arrays.schedulable[row]]
    cluster.unmanaged_memory.catch_up()
    scheduler.advance(now_s)
    queue, over = request.bundle.request.queue, None
    scheduler.tree.form.require_leaf(queue)
    for choice in cluster.kinds.choices(request.bundle, constraints):
        refused = scheduler.tree.over_limit(queue, scheduler.state.charges.charge(choice.shape))
        if refused is not None:
            over = over or refused
            continue
        for row in cordoned:
            arrays.cordon(row, schedulable=True)
        try:
            placement = scheduler.placer.choose_among(choice.shape, rows)
        finally:
            for row in cordoned:
                arrays.cordon(row)
        if placement is None:
            continue
        running = scheduler.adopt(queued(request, choice), placement=placement, started_at_s=now_s)
        cluster.known[request.id] = KnownBundle(request, (choice,), choice, as_it_lies=bound)
        bind = Bind(id=request.id, node=running.node, placement=placement)
        started = next(iter(cluster.translated((bind,))))
        if isinstance(started, StartBundle):
            return started
        cluster.finished(request.id)  # its sharing mode refuses
    if over is not None:
        what = ("devices", "CPUs", "MiB of host memory")[over.resource]
        unit = 1 if over.resource == 2 else 1000
        raise CalabashError(
            f"queue {over.queue} has {over.used / unit:g} of at most {over.limit / unit:g} {what} in use",
            reason=Reason.QUEUE_OVER_LIMIT,
        )
    return None


def rebind(
    cluster: ClusterScheduler, allocation: AllocationId, nodes: Iterable[str], now_s: float
) -> StartBundle | None:
    """Move a placed request that has not begun to run to the best of these nodes.

    Returns None if no node has the devices free, or if the request must be in one domain with other members of its gang;
    the request then waits again.
    """
    request = cluster.known[allocation].request
    cluster.finished(allocation)
    if request.domain_bound:
        cluster.wait_again(request)
        return None
    with suppress(CalabashError):
        start = start_on(cluster, request, nodes, now_s)
        if start is not None:
            return start
    cluster.wait_again(request)
    return None


def nodes_with_room(cluster: ClusterScheduler, allocation: AllocationId, nodes: Iterable[str], most: int) -> list[str]:
    """Return the first nodes, at most ``most``, on which another request like this one could start now.

    Returns [] if the request is unknown, or must be in one domain with other members of its gang.
    """
    known = cluster.known.get(allocation)
    found: list[str] = []
    if known is None or known.request.domain_bound:
        return found
    for name in nodes:
        if len(found) == most:
            break
        row = cluster.scheduler.cluster.row_of.get(name)
        if row is not None and cluster.scheduler.placer.choose_on(known.choice.shape, row) is not None:
            found.append(name)
    return found


def free_text(cluster: ClusterScheduler, name: str) -> str:
    """Return a text with a node's number of idle devices, and the largest free memory and compute of one device."""
    arrays = cluster.scheduler.cluster
    row = arrays.row_of.get(name)
    if row is None:
        return f"{name} has reported no devices"
    count = int(arrays.gpu_count[row])
    milli = [int(free) for free in arrays.gpu_free_milli[row, :count]]
    memory = [int(free) for free in arrays.gpu_free_mib[row, :count]]
    idle = sum(free >= WHOLE_MILLI for free in milli)
    most = f"at most {max(memory, default=0)} MiB and {max(milli, default=0) // 10} % of one"
    return f"{name} has {idle} of {count} devices idle, {most}"
