"""Choice of devices within one node: fullest sufficient device, one NVLink island, one card model, or lowest index."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

import numpy as np

from calabash.model.mig import MigPlace, open_profiles
from calabash.model.mig_plan import place_together, used_and_idle
from calabash.sched.cluster.arrays import Cluster
from calabash.sched.cluster.best_effort import best_effort_scores
from calabash.sched.cluster.columns import Rows
from calabash.sched.cluster.fit import CompiledShape
from calabash.sched.cluster.shape import NodePlacement, Topology


def choose_devices(compiled: CompiledShape, row: int, *, known: bool = False) -> NodePlacement | None:
    """Return the default placement of a shape on one node; None if it does not fit.

    Slices take the fullest devices that suffice. Whole devices are taken from one NVLink island or NUMA node if the
    shape has a topology, of one card model if possible, and by lowest index.

    Args:
        row: row of the node.
        known: the caller knows that the shape fits on the node, so that this is not checked again.
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
        free = free[np.argsort(-best_effort_scores(compiled.cluster, rows, fits)[0, free], kind="stable")]
    elif not shape.whole:
        gaps = compiled.cluster.gpu_free_milli[row, free] * (1 << 40) + compiled.cluster.gpu_free_mib[row, free]
        free = free[np.argsort(gaps, kind="stable")]
    if compiled.cluster.has_mixed and shape.gpu_count > 1:
        free = _of_one_card(compiled, row, free)
    return NodePlacement(node=row, devices=tuple(sorted(free[: shape.gpu_count].tolist())))


def placement_options(compiled: CompiledShape, row: int) -> Iterator[NodePlacement]:
    """Yield the placements of a shape on one node that differ in the states of their devices, the default one first.

    Placements on devices of equal states have the same effect, so only one of them is yielded.
    """
    first = choose_devices(compiled, row)
    if first is None:
        return
    yield first
    shape, cluster = compiled.shape, compiled.cluster
    if not shape.gpu_count:
        return
    by_state: dict[Hashable, list[int]] = {}
    for device in np.flatnonzero(compiled.devices(np.array([row]))[0]).tolist():
        by_state.setdefault(device_state(cluster, row, device), []).append(device)
    island_of = compiled.groups(np.array([row]))[0]
    for devices in _device_sets(list(by_state.values()), shape.gpu_count):
        islands = [int(island_of[device]) for device in devices]
        if shape.topology_required and shape.gpu_count > 1 and (len(set(islands)) > 1 or islands[0] < 0):
            continue
        placement = (
            _choose_mig(compiled, row, list(devices)) if shape.mig_profile else NodePlacement(node=row, devices=devices)
        )
        if placement is not None and placement.devices != first.devices:
            yield placement


def _device_sets(groups: Sequence[Sequence[int]], count: int) -> Iterator[tuple[int, ...]]:
    """Yield sets of ``count`` devices that differ in the number of devices taken from each group.

    Args:
        groups: groups of interchangeable devices, by index.
    """
    if not count:
        yield ()
    elif groups:
        for taken in range(min(count, len(groups[0])), -1, -1):
            for rest in _device_sets(groups[1:], count - taken):
                yield tuple(sorted((*groups[0][:taken], *rest)))


def device_state(cluster: Cluster, row: int, device: int) -> Hashable:
    """Return a key of all that decides what a device can serve; devices of one node with equal keys are interchangeable."""
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


def _within_island(compiled: CompiledShape, rows: Rows, free: Rows) -> Rows:
    """Return the free devices of the smallest island that has enough for the shape.

    If no island has enough, all free devices are returned, those of the largest islands first.
    """
    groups = compiled.groups(rows)[0][free]
    sizes = {int(group): int((groups == group).sum()) for group in np.unique(groups) if group >= 0}
    enough = [(size, group) for group, size in sizes.items() if size >= compiled.shape.gpu_count]
    if enough:
        inside: Rows = free[groups == min(enough)[1]]
        return inside
    order = sorted(range(len(free)), key=lambda i: (-sizes.get(int(groups[i]), 0), int(groups[i]), i))
    return free[order]


def _of_one_card(compiled: CompiledShape, row: int, free: Rows) -> Rows:
    """Return the free devices of the card model that has the fewest free devices, but enough for the shape.

    If no model has enough, all free devices are returned.
    """
    cards = compiled.cluster.gpu_card[row, free]
    kinds, first, sizes = np.unique(cards, return_index=True, return_counts=True)
    enough = [
        (int(s), int(i), int(k)) for k, i, s in zip(kinds, first, sizes, strict=True) if s >= compiled.shape.gpu_count
    ]
    return free[cards == min(enough)[2]] if enough else free


def _choose_mig(compiled: CompiledShape, row: int, free: list[int]) -> NodePlacement | None:
    """Return the placement of a shape's MIG profiles that keeps the largest profiles possible; None if they do not fit.

    A device is preferred if it needs fewer new instances. Among equals, the device with more slices taken already is
    preferred, then the one where fewer instances are destroyed, then the one where larger profiles still fit
    afterwards.
    """
    cluster, shape = compiled.cluster, compiled.shape
    options: list[tuple[tuple[object, ...], int, tuple[MigPlace, ...]]] = []
    coming = list(cluster.mig_coming)
    for name in shape.mig_profiles:
        if name in coming:
            coming.remove(name)  # the request that is placed now
    for device in free:
        geometry = cluster.geometries[int(cluster.gpu_geometry[row, device])]
        if geometry is None:
            continue
        instances = cluster.mig_instances.get((row, device), ())
        used = cluster.mig_state(row, device)
        found = place_together(geometry, shape.mig_profiles, used, instances, coming)
        if found is not None:
            state, _ = used_and_idle(geometry, used, instances)
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
