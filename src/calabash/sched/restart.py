"""A scheduler filled from a snapshot: for a caller that starts again, or goes on elsewhere."""

from __future__ import annotations

from dataclasses import replace

from calabash.sched.cluster.scoring import PlacementPolicy
from calabash.sched.scheduler import DEFAULT_POLICY, Scheduler
from calabash.sched.snapshot import Snapshot
from calabash.sched.upkeep import set_mig_instances


def restore(snapshot: Snapshot, *, policy: str | PlacementPolicy = DEFAULT_POLICY) -> Scheduler:
    """An equal scheduler: the next cycle of both gives the same decisions, but for ties between equal nodes."""
    scheduler = Scheduler(snapshot.nodes, snapshot.queues, policy=policy, options=snapshot.options)
    for node, device, instances in snapshot.standing:
        set_mig_instances(scheduler, node, device, instances)
    for running in snapshot.running:
        placement = replace(running.placement, node=scheduler.cluster.row(running.node))
        scheduler.adopt(running.request, placement=placement, started_at_s=running.started_at_s)
    for request in snapshot.waiting:
        scheduler.submit(request)
    for name in snapshot.cordoned:
        scheduler.cordon(name)
    scheduler.tree.set_past(snapshot.past, snapshot.now_s)
    scheduler.advance(snapshot.now_s)
    return scheduler
