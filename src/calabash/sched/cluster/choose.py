"""Devices of one node for a shape: the fullest sufficient for a share, one island, one physical model, or lowest index."""

from __future__ import annotations

import numpy as np

from calabash.model.mig import MigPlace, open_profiles
from calabash.model.mig_plan import standing, together
from calabash.sched.cluster.columns import Rows
from calabash.sched.cluster.fit import Compiled
from calabash.sched.cluster.shape import NodePlacement, Topology


def choose(compiled: Compiled, row: int) -> NodePlacement | None:
    """Devices of one node by default: the fullest sufficient for a share, one island or lowest index for cards."""
    shape = compiled.shape
    rows = np.array([row])
    if not shape.gpu_count:
        return NodePlacement(node=row) if compiled.nodes(rows, None)[0] else None
    fits = compiled.devices(rows)
    if not compiled.nodes(rows, fits)[0]:
        return None
    free = np.flatnonzero(fits[0])
    if shape.mig_profile:
        return _choose_mig(compiled, row, free.tolist())
    if shape.topology is not Topology.ANY and shape.gpu_count > 1:
        free = _within_island(compiled, rows, free)
    if not shape.whole:
        gaps = compiled.cluster.gpu_free_milli[row, free] * (1 << 40) + compiled.cluster.gpu_free_mib[row, free]
        free = free[np.argsort(gaps, kind="stable")]
    if compiled.cluster.has_mixed and shape.gpu_count > 1:
        free = _of_one_card(compiled, row, free)
    return NodePlacement(node=row, devices=tuple(sorted(free[: shape.gpu_count].tolist())))


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
