"""Devices of one node for a shape: the fullest sufficient for a share, one island, one physical model, or lowest index."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

import numpy as np

from calabash.model.mig import MigPlace, open_profiles
from calabash.model.mig_plan import standing, together
from calabash.sched.cluster.arrays import Cluster
from calabash.sched.cluster.best_effort import worth
from calabash.sched.cluster.columns import Rows
from calabash.sched.cluster.fit import Compiled
from calabash.sched.cluster.shape import NodePlacement, Topology


def choose(compiled: Compiled, row: int, *, known: bool = False) -> NodePlacement | None:
    """Devices of one node by default: the fullest sufficient for a share, one island or lowest index for cards.

    Args:
        known: whether the shape is known to fit there.
    """
    shape = compiled.shape
    rows = np.array([row])
    if not shape.gpu_count:
        return NodePlacement(node=row) if known or compiled.nodes(rows, None)[0] else None
    fits = compiled.devices(rows)
    if not known and not compiled.nodes(rows, fits)[0]:
        return None
    free = fits[0].nonzero()[0]
    if shape.mig_profile:
        return _choose_mig(compiled, row, free.tolist())
    if shape.topology is not Topology.ANY and shape.gpu_count > 1:
        free = _within_island(compiled, rows, free)
    if shape.best_effort:
        free = free[np.argsort(-worth(compiled.cluster, rows, fits)[0, free], kind="stable")]
    elif not shape.whole:
        gaps = compiled.cluster.gpu_free_milli[row, free] * (1 << 40) + compiled.cluster.gpu_free_mib[row, free]
        free = free[np.argsort(gaps, kind="stable")]
    if compiled.cluster.has_mixed and shape.gpu_count > 1:
        free = _of_one_card(compiled, row, free)
    return NodePlacement(node=row, devices=tuple(sorted(free[: shape.gpu_count].tolist())))


def places(compiled: Compiled, row: int) -> Iterator[NodePlacement]:
    """Yield places for the shape on one node that differ in the state of their devices, the default first."""
    first = choose(compiled, row)
    if first is None:
        return
    yield first
    shape, cluster = compiled.shape, compiled.cluster
    if not shape.gpu_count:
        return
    alike: dict[Hashable, list[int]] = {}
    for device in np.flatnonzero(compiled.devices(np.array([row]))[0]).tolist():
        alike.setdefault(device_state(cluster, row, device), []).append(device)
    islands = compiled.groups(np.array([row]))[0]
    for devices in _sets(list(alike.values()), shape.gpu_count):
        together = [int(islands[device]) for device in devices]
        if shape.topology_required and shape.gpu_count > 1 and (len(set(together)) > 1 or together[0] < 0):
            continue
        place = (
            _choose_mig(compiled, row, list(devices)) if shape.mig_profile else NodePlacement(node=row, devices=devices)
        )
        if place is not None and place.devices != first.devices:
            yield place


def _sets(alike: Sequence[Sequence[int]], count: int) -> Iterator[tuple[int, ...]]:
    """Yield sets of so many devices that differ in how many are taken of each group of devices in equal state."""
    if not count:
        yield ()
    elif alike:
        for taken in range(min(count, len(alike[0])), -1, -1):
            for rest in _sets(alike[1:], count - taken):
                yield tuple(sorted((*alike[0][:taken], *rest)))


def device_state(cluster: Cluster, row: int, device: int) -> Hashable:
    """Return all that decides what a device can serve: equal for devices of which it does not matter which is taken."""
    at = (row, device)
    return (
        cluster.gpu_free_milli[at],
        cluster.gpu_free_mib[at],
        cluster.gpu_mib[at],
        cluster.gpu_users[at] > 0,
        cluster.gpu_best_effort[at],
        cluster.gpu_slices[at],
        cluster.gpu_services[at],
        cluster.gpu_mode[at],
        cluster.gpu_pinned[at],
        cluster.gpu_healthy[at],
        cluster.gpu_model[at],
        cluster.gpu_card[at],
        cluster.gpu_island[at],
        cluster.gpu_numa[at],
        cluster.gpu_geometry[at],
        cluster.mig_states.get(at),
        cluster.mig_instances.get(at, ()),
    )


def _within_island(compiled: Compiled, rows: Rows, free: Rows) -> Rows:
    """The smallest island that has room, else the devices of the largest ones first."""
    groups = compiled.groups(rows)[0][free]
    sizes = {int(group): int((groups == group).sum()) for group in np.unique(groups) if group >= 0}
    enough = [(size, group) for group, size in sizes.items() if size >= compiled.shape.gpu_count]
    if enough:
        inside: Rows = free[groups == min(enough)[1]]
        return inside
    order = sorted(range(len(free)), key=lambda i: (-sizes.get(int(groups[i]), 0), int(groups[i]), i))
    return free[order]


def _of_one_card(compiled: Compiled, row: int, free: Rows) -> Rows:
    """The devices of one physical model, of the model with the fewest that suffice; all when no model has enough."""
    cards = compiled.cluster.gpu_card[row, free]
    kinds, first, sizes = np.unique(cards, return_index=True, return_counts=True)
    enough = [
        (int(s), int(i), int(k)) for k, i, s in zip(kinds, first, sizes, strict=True) if s >= compiled.shape.gpu_count
    ]
    return free[cards == min(enough)[2]] if enough else free


def _choose_mig(compiled: Compiled, row: int, free: list[int]) -> NodePlacement | None:
    """The cards that keep the largest profiles possible, with the places on each of them."""
    cluster, shape = compiled.cluster, compiled.shape
    options: list[tuple[tuple[object, ...], int, tuple[MigPlace, ...]]] = []
    coming = list(cluster.mig_coming)
    for name in shape.mig_profiles:
        if name in coming:
            coming.remove(name)  # the one that is being decided about
    for device in free:
        geometry = cluster.geometries[int(cluster.gpu_geometry[row, device])]
        if geometry is None:
            continue
        instances = cluster.mig_instances.get((row, device), ())
        used = cluster.mig_state(row, device)
        found = together(geometry, shape.mig_profiles, used, instances, coming)
        if found is not None:
            state, _ = standing(geometry, used, instances)
            after = state
            for choice in found:
                after = after.joined(geometry, choice.profile, *choice.place)
            left = open_profiles(geometry, after)
            merit = (
                sum(not choice.shared for choice in found),
                -state.mask.bit_count(),
                sum(len(choice.destroyed) for choice in found),
                *(-count for count in left),
            )
            options.append((merit, device, tuple(choice.place for choice in found)))
    picked = sorted((device, places) for _, device, places in sorted(options)[: shape.gpu_count])
    if len(picked) < shape.gpu_count:
        return None
    return NodePlacement(node=row, devices=tuple(d for d, _ in picked), mig_places=tuple(p for _, p in picked))
