"""What a cluster that lives does to a scheduler beside nodes that come and go: labels that change, binds that fail."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from calabash.model.errors import CalabashError, Reason
from calabash.model.mig import MigInstance
from calabash.model.request import CUT_MODES, MPS_MODE
from calabash.sched.cluster.columns import MODE_MIG
from calabash.sched.cluster.shape import Shape
from calabash.sched.scheduler import Scheduler


def relabel(scheduler: Scheduler, name: str, *, labels: Mapping[str, str], taints: Sequence[str]) -> None:
    """A node has other labels or taints; what runs there is untouched."""
    row = scheduler.cluster.row(name)
    scheduler.cluster.relabel(row, labels, taints)
    scheduler.cluster.touch(row)
    scheduler.specs[name] = replace(scheduler.specs[name], labels=labels, taints=tuple(taints))
    scheduler.state.freed()


def set_mig_instances(scheduler: Scheduler, name: str, device: int, instances: Sequence[MigInstance]) -> None:
    """What MIG instances stand on a device, used or not: places are chosen so that few of them have to leave, and a device
    with some that stay serves no other mode."""
    cluster = scheduler.cluster
    key = (cluster.row(name), device)
    if cluster.mig_instances.get(key, ()) == tuple(instances):
        return
    if instances:
        cluster.mig_instances[key] = tuple(instances)
    else:
        del cluster.mig_instances[key]
    stays = any(instance.stays for instance in instances)
    kept = scheduler.specs[name].gpus[device].mode
    cluster.keep_mode(*key, kept if kept in CUT_MODES or not stays else MODE_MIG)
    cluster.gpu_services[key] = max(1, len(instances)) if kept == MPS_MODE else 1
    cluster.touch(key[0])
    scheduler.state.freed()


def set_mig_coming(scheduler: Scheduler, profiles: Iterable[str]) -> None:
    """The profiles that wait, in their order: who is placed now leaves room for them where it can."""
    scheduler.cluster.mig_coming = list(profiles)


def set_evictable(scheduler: Scheduler, request_id: str, *, evictable: bool, guarded: bool = False) -> None:
    """What runs may be evicted for others, or may not, or only where it is borrowed. Raises CalabashError when it does not
    run."""
    state = scheduler.state
    running = state.registry.running(request_id)
    if running is None:
        raise CalabashError(f"{request_id} does not run", reason=Reason.CONFLICT, hint="decide about it first")
    state.registry.move(replace(running, request=replace(running.request, evictable=evictable, guarded=guarded)))
    if evictable:
        state.freed()  # who waits may have its place now
    else:
        state.changed()


def set_movable(scheduler: Scheduler, request_id: str, *, shape: Shape | None = None) -> None:
    """What runs may be moved to where ``shape`` fits, which asks for what it has; None: it may not. Who waits has its benefit
    from the next cycle on.

    Raises CalabashError when it does not run.
    """
    registry = scheduler.registry
    running = registry.running(request_id)
    if running is None:
        raise CalabashError(f"{request_id} does not run", reason=Reason.CONFLICT, hint="decide about it first")
    shape, movable = shape or running.request.shape, shape is not None
    registry.move(replace(running, request=replace(running.request, movable=movable, shape=shape)))
