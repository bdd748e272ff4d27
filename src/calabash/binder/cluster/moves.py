"""What is moved on a cluster where stopping it and starting it elsewhere are two things: its new place is kept between them.

The scheduler has moved it already. The place that it was given there becomes that of an allocation of its own, which nobody
evicts or moves, until whoever takes over is there, or nobody waits for that any more.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from calabash.binder.cluster.cluster import BundleRequest, ClusterScheduler, KnownBundle, StartBundle, queued
from calabash.binder.cluster.device_kinds import Choice, PlacementConstraints
from calabash.model.device import DeviceUuid, NodeName
from calabash.model.errors import CalabashError
from calabash.model.request import AllocationId
from calabash.sched import Bind
from calabash.sched import set_movable as set_movable_in


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptPlace:
    """Devices that are held for whoever takes over."""

    id: AllocationId
    node: NodeName
    devices: frozenset[DeviceUuid]


def set_movable(
    cluster: ClusterScheduler, allocation: AllocationId, *, movable: bool, constraints: PlacementConstraints
) -> None:
    """Whether what holds its place may be moved; nothing when it holds none.

    What was adopted lies where it lies. It is moved by its own shape, to where it might have gone, or not at all.

    Args:
        constraints: of whoever would start elsewhere in its stead.
    """
    known = cluster.known.get(allocation)
    if known is None or not cluster.holds(allocation) or known.request.movable is movable:
        return
    if movable:
        known.request = replace(known.request, constraints=constraints)
        own = _own_choices(cluster, known)
        choice = next((c for c in own if c.layout == known.choice.layout), None)
        if choice is None:
            return
        known.choices, known.choice, known.as_it_lies = own, choice, False
    known.request = replace(known.request, movable=movable)
    set_movable_in(cluster.scheduler, allocation, shape=known.choice.shape if movable else None)


def _own_choices(cluster: ClusterScheduler, known: KnownBundle) -> tuple[Choice, ...]:
    try:
        return cluster.kinds.choices(known.request.bundle, known.request.constraints)
    except CalabashError:
        return ()


def keep_place(cluster: ClusterScheduler, allocation: AllocationId) -> KeptPlace | None:
    """What was moved is stopped, and its place there is kept; None when that went to others within the same cycle."""
    scheduler = cluster.scheduler
    running, known = scheduler.registry.running(allocation), cluster.known.get(allocation)
    if running is None or known is None:
        cluster.finished(allocation)
        return None
    kept = AllocationId(f"kept-{allocation}")
    request = replace(known.request, id=kept, evictable=False, movable=False)
    cluster.tenancy.rename(allocation, kept)
    cluster.finished(allocation)
    scheduler.adopt(queued(request, known.choice), placement=running.placement, started_at_s=running.started_at_s)
    cluster.known[kept] = replace(known, request=request)
    node = cluster.nodes[NodeName(running.node)]
    devices = frozenset(node.devices[i].device.uuid for i in running.placement.devices)
    return KeptPlace(id=kept, node=node.name, devices=devices)


def take_over(cluster: ClusterScheduler, kept: KeptPlace, request: BundleRequest, now_s: float) -> StartBundle | None:
    """One that waits, and asks for the same, has the place that was kept; None: its sharing mode refuses, and it waits on."""
    scheduler = cluster.scheduler
    running, known = scheduler.registry.running(kept.id), cluster.known[kept.id]
    assert running is not None
    cluster.finished(kept.id)
    cluster.finished(request.id)
    scheduler.advance(now_s)
    begun = scheduler.adopt(queued(request, known.choice), placement=running.placement, started_at_s=now_s)
    cluster.known[request.id] = replace(known, request=request)
    started = next(iter(cluster.translated((Bind(id=request.id, node=begun.node, placement=begun.placement),))))
    return started if isinstance(started, StartBundle) else None
