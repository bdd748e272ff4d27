"""Updates of nodes, MIG instances and running requests in a scheduler: labels, taints, instances, evictable, movable."""

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
    """Replace the labels and taints of a node. Running requests are not affected."""
    row = scheduler.cluster.row(name)
    scheduler.cluster.relabel(row, labels, taints)
    scheduler.cluster.touch(row)
    scheduler.specs[name] = replace(scheduler.specs[name], labels=labels, taints=tuple(taints))
    scheduler.state.freed()


def set_mig_instances(scheduler: Scheduler, name: str, device: int, instances: Sequence[MigInstance]) -> None:
    """Set the MIG instances that exist on a device, used or unused.

    Placements are chosen so that few existing instances must be removed. A device with instances that cannot be removed
    serves no other sharing mode.
    """
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
    """Set the MIG profiles that waiting requests name, in the order of the requests.

    Placements of other requests avoid the positions that these profiles need.
    """
    scheduler.cluster.mig_coming = list(profiles)


def set_evictable(scheduler: Scheduler, request_id: str, *, evictable: bool, guarded: bool = False) -> None:
    """Set whether a running request may be evicted, and whether it is guarded: evictable only while it is borrowed.

    Raises:
        CalabashError: the request does not run.
    """
    state = scheduler.state
    running = state.registry.running(request_id)
    if running is None:
        raise _not_running(request_id)
    state.registry.move(replace(running, request=replace(running.request, evictable=evictable, guarded=guarded)))
    if evictable:
        state.freed()  # waiting requests may evict it now
    else:
        state.changed()


def set_movable(scheduler: Scheduler, request_id: str, *, shape: Shape | None = None) -> None:
    """Set whether a running request may be moved. Takes effect with the next cycle.

    Args:
        shape: shape that selects where the request may be moved; its amounts must be those of the request. None if the
            request must not be moved.

    Raises:
        CalabashError: the request does not run.
    """
    registry = scheduler.registry
    running = registry.running(request_id)
    if running is None:
        raise _not_running(request_id)
    shape, movable = shape or running.request.shape, shape is not None
    registry.move(replace(running, request=replace(running.request, movable=movable, shape=shape)))


def _not_running(request_id: str) -> CalabashError:
    return CalabashError(
        f"request {request_id} is not running", reason=Reason.CONFLICT, hint="call decide or cycle to start it first"
    )
