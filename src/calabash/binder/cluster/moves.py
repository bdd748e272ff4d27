"""Moves on a cluster: a pod is stopped first and started elsewhere later, and its new devices are reserved in between.

When this module is called, the scheduler has already assigned new devices to the allocation. These become the devices
of a reservation, an allocation which is never evicted or moved, until the replacement pod starts there or the
reservation is cancelled.
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
class MoveReservation:
    """Devices that are reserved for the replacement of a moved pod; ``id`` is the ID of the reservation."""

    id: AllocationId
    node: NodeName
    devices: frozenset[DeviceUuid]


def set_movable(
    cluster: ClusterScheduler, allocation: AllocationId, *, movable: bool, constraints: PlacementConstraints
) -> None:
    """Set whether a placed allocation may be moved. Does nothing if it holds no devices.

    The shape of an adopted allocation describes only the devices that it holds. To make the allocation movable, the
    shape is replaced by one that is calculated from the request and has the same layout. If there is none, the
    allocation stays immovable.

    Args:
        constraints: constraints of the replacement that would start elsewhere.
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


def reserve_place(cluster: ClusterScheduler, allocation: AllocationId) -> MoveReservation | None:
    """Remove a moved allocation and reserve its new devices for the replacement pod.

    Returns None if another request got these devices within the same cycle.
    """
    scheduler = cluster.scheduler
    running, known = scheduler.registry.running(allocation), cluster.known.get(allocation)
    if running is None or known is None:
        cluster.finished(allocation)
        return None
    kept = AllocationId(f"kept-{allocation}")
    request = replace(known.request, id=kept, evictable=False, movable=False)
    cluster.held_slices.rename(allocation, kept)
    cluster.finished(allocation)
    scheduler.adopt(queued(request, known.choice), placement=running.placement, started_at_s=running.started_at_s)
    cluster.known[kept] = replace(known, request=request)
    node = cluster.nodes[NodeName(running.node)]
    devices = frozenset(node.devices[i].device.uuid for i in running.placement.devices)
    return MoveReservation(id=kept, node=node.name, devices=devices)


def start_reserved(
    cluster: ClusterScheduler, kept: MoveReservation, request: BundleRequest, now_s: float
) -> StartBundle | None:
    """Start a waiting request for the same bundle on the devices of the reservation ``kept``.

    The reservation ends. Returns None if the sharing mode refuses the start; the request then continues to wait.
    """
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
