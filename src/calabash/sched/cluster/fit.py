"""Where a shape fits, as vectors over rows, and the first reason why not.

A shape is compiled once per cluster: what depends only on labels, taints and device models becomes a mask of nodes and,
where it matters, of devices. What changes with every placement is compared on the rows asked for. The first failing
condition per node, in a fixed order, is its reason; explanations count them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from calabash.model.errors import Reason
from calabash.sched.cluster.arrays import MODE_MIG, Bools, Cluster, Ints, Rows
from calabash.sched.cluster.mig import best_start, legal_starts
from calabash.sched.cluster.shape import WHOLE_MILLI, NodePlacement, Shape, Topology, parse_expression, tolerates

# The order in which conditions are looked at; codes are positions in this tuple plus one, 0 means that it fits.
REASONS: tuple[Reason, ...] = (
    Reason.SELECTOR_MISMATCH,
    Reason.TAINTED,
    Reason.NO_DEVICES,
    Reason.TOO_LARGE,
    Reason.UNHEALTHY,
    Reason.MODE_CONFLICT,
    Reason.NO_CPU,
    Reason.NO_HOST_MEMORY,
    Reason.NO_CORES,
    Reason.NO_MEMORY,
    Reason.TOPOLOGY,
)
_CODE = {reason: code for code, reason in enumerate(REASONS, 1)}


class Compiled:
    """A shape bound to a cluster: static masks, renewed when labels, taints or the set of nodes change."""

    __slots__ = ("cluster", "device_static", "mode", "selected", "shape", "static", "tolerated", "version")

    def __init__(self, cluster: Cluster, shape: Shape) -> None:
        self.cluster = cluster
        self.shape = shape
        self.mode = cluster.mode_code(shape.mode or (MODE_MIG if shape.mig_profile else ""))
        self.version = -1
        self.renew()

    def renew(self) -> None:
        """Compute the static masks again if they are out of date."""
        cluster, shape = self.cluster, self.shape
        if self.version == cluster.static_version:
            return
        self.version = cluster.static_version
        expressions = [parse_expression(text) for text in shape.selector]
        self.selected: Bools | None = None
        if expressions:
            self.selected = np.array(
                [all(expression.holds(labels) for expression in expressions) for labels in cluster.labels], np.bool_
            )
        self.tolerated: Bools | None = None
        if any(cluster.taints):
            self.tolerated = np.array(
                [all(tolerates(shape.tolerations, taint) for taint in taints) for taints in cluster.taints], np.bool_
            )
        self.device_static: Bools | None = None
        if shape.gpu_count and (shape.models or shape.card_memory_mib_min or shape.card_memory_mib_max):
            self.device_static = self._cards()
        masks = [mask for mask in (self.selected, self.tolerated) if mask is not None]
        self.static: Bools | None = np.logical_and.reduce(masks) if masks else None

    def _cards(self) -> Bools:
        cluster, shape = self.cluster, self.shape
        mask = np.arange(cluster.width) < cluster.gpu_count[:, None]
        if shape.models:
            wanted = [code for name, code in cluster.models.items() if name in shape.models]
            mask &= np.isin(cluster.gpu_model, wanted)
        if shape.card_memory_mib_min:
            mask &= cluster.gpu_mib >= shape.card_memory_mib_min
        if shape.card_memory_mib_max:
            mask &= cluster.gpu_mib <= shape.card_memory_mib_max
        return mask

    @property
    def plain(self) -> bool:
        """Only amounts decide: no selection, no modes, no sick or cordoned parts, no device memory, no MIG."""
        cluster, shape = self.cluster, self.shape
        special = cluster.has_modes or cluster.has_unhealthy or cluster.has_cordoned or cluster.gpu_tracked or self.mode
        masked = self.static is not None or self.device_static is not None
        special = special or bool(shape.gpu_memory_mib)
        return not (special or masked or shape.mig_profile or shape.topology_required) and (
            shape.fraction or shape.whole or not shape.gpu_count
        )

    # ---------------------------------------------------------------------------------------- what fits now
    def devices(self, rows: Rows, gaps: Ints | None = None) -> Bools:
        """[rows, G]: devices that can serve this shape now. ``gaps`` are the rows' free milli if already gathered."""
        cluster, shape = self.cluster, self.shape
        if gaps is None:
            gaps = cluster.gpu_free_milli[rows]
        if shape.mig_profile:
            fits = self._mig(rows)
        else:
            fits = gaps >= shape.gpu_milli
            if shape.gpu_memory_mib:
                fits &= cluster.gpu_free_mib[rows] >= shape.gpu_memory_mib
            elif shape.whole and cluster.gpu_tracked:
                fits &= cluster.gpu_free_mib[rows] == cluster.gpu_mib[rows]
        if self.device_static is not None:
            fits &= self.device_static[rows]
        if cluster.has_unhealthy:
            fits &= cluster.gpu_healthy[rows]
        if cluster.has_modes or self.mode:
            fits &= self._mode_allows(rows)
        return fits

    def _mode_allows(self, rows: Rows) -> Bools:
        cluster = self.cluster
        idle = (cluster.gpu_users[rows] == 0) & ~cluster.gpu_pinned[rows]
        allowed: Bools = idle | (cluster.gpu_mode[rows] == self.mode)
        return allowed

    def _mig(self, rows: Rows) -> Bools:
        """Devices with a legal start for the profile."""
        cluster, name = self.cluster, self.shape.mig_profile
        known = [g is not None and g.profile(name) is not None for g in cluster.geometries]
        fits = np.array(known, np.bool_)[cluster.gpu_geometry[rows]]
        fits &= (cluster.gpu_free_milli[rows] == WHOLE_MILLI) | (cluster.gpu_mode[rows] == self.mode)
        for index, device in zip(*np.nonzero(fits), strict=True):
            state = cluster.mig_states.get((int(rows[index]), int(device)))
            if state is not None:
                geometry = cluster.geometries[int(cluster.gpu_geometry[rows[index], device])]
                profile = geometry.profile(name) if geometry else None
                fits[index, device] = bool(geometry and profile and legal_starts(geometry, profile, state))
        return fits

    def nodes(self, rows: Rows, fits: Bools | None) -> Bools:
        """[rows]: nodes where the shape fits, given which devices do (None for a CPU-only shape)."""
        cluster, shape = self.cluster, self.shape
        ok: Bools = cluster.cpu_free_milli[rows] >= shape.cpu_milli
        ok &= cluster.memory_free_mib[rows] >= shape.memory_mib
        if fits is not None:
            ok &= fits.any(axis=1) if shape.gpu_count == 1 else fits.sum(axis=1) >= shape.gpu_count
            if shape.topology_required and shape.gpu_count > 1:
                ok &= self._island_room(rows, fits) >= shape.gpu_count
        if self.static is not None:
            ok &= self.static[rows]
        if cluster.has_cordoned:
            ok &= cluster.schedulable[rows]
        return ok

    def _groups(self, rows: Rows) -> Ints:
        cluster = self.cluster
        matrix = cluster.gpu_numa if self.shape.topology is Topology.NUMA else cluster.gpu_island
        return matrix[rows].astype(np.int64)

    def _island_room(self, rows: Rows, fits: Bools) -> Ints:
        """[rows]: most fitting devices within one island or NUMA node."""
        groups = self._groups(rows)
        room = np.zeros(len(rows), np.int64)
        for group in range(int(groups.max(initial=-1)) + 1):
            np.maximum(room, (fits & (groups == group)).sum(axis=1), out=room)
        return room

    def fitting(self, rows: Rows | None = None) -> Bools:
        """[rows]: nodes where the shape fits now; all rows when None."""
        self.renew()
        if rows is None:
            rows = np.arange(self.cluster.node_count)
        return self.nodes(rows, self.devices(rows) if self.shape.gpu_count else None)

    # ---------------------------------------------------------------------------------------- device choice
    def choose(self, row: int) -> NodePlacement | None:
        """Devices of one node by default: the fullest sufficient for a share, one island or lowest index for cards."""
        shape = self.shape
        rows = np.array([row])
        if not shape.gpu_count:
            return NodePlacement(node=row) if self.nodes(rows, None)[0] else None
        fits = self.devices(rows)
        if not self.nodes(rows, fits)[0]:
            return None
        free = np.flatnonzero(fits[0])
        if shape.mig_profile:
            return self._choose_mig(row, free.tolist())
        if shape.topology is not Topology.ANY and shape.gpu_count > 1:
            free = self._within_island(rows, free)
        if not shape.whole:
            gaps = self.cluster.gpu_free_milli[row, free] * (1 << 40) + self.cluster.gpu_free_mib[row, free]
            free = free[np.argsort(gaps, kind="stable")]
        if self.cluster.has_mixed and shape.gpu_count > 1:
            free = self._of_one_card(row, free)
        return NodePlacement(node=row, devices=tuple(sorted(free[: shape.gpu_count].tolist())))

    def _within_island(self, rows: Rows, free: Rows) -> Rows:
        """The smallest island that has room, else the devices of the largest ones first."""
        groups = self._groups(rows)[0][free]
        sizes = {int(group): int((groups == group).sum()) for group in np.unique(groups) if group >= 0}
        enough = [(size, group) for group, size in sizes.items() if size >= self.shape.gpu_count]
        if enough:
            inside: Rows = free[groups == min(enough)[1]]
            return inside
        order = sorted(range(len(free)), key=lambda i: (-sizes.get(int(groups[i]), 0), int(groups[i]), i))
        return free[order]

    def _of_one_card(self, row: int, free: Rows) -> Rows:
        """The devices of one physical model, of the model with the fewest that suffice; all when no model has enough."""
        cards = self.cluster.gpu_card[row, free]
        kinds, first, sizes = np.unique(cards, return_index=True, return_counts=True)
        enough = [
            (int(s), int(i), int(k)) for k, i, s in zip(kinds, first, sizes, strict=True) if s >= self.shape.gpu_count
        ]
        return free[cards == min(enough)[2]] if enough else free

    def _choose_mig(self, row: int, free: list[int]) -> NodePlacement | None:
        """The cards that keep the largest profiles possible; all instances of one request start at the same slice."""
        cluster, shape = self.cluster, self.shape
        options: dict[int, list[tuple[tuple[int, ...], int]]] = {}
        for device in free:
            geometry = cluster.geometries[int(cluster.gpu_geometry[row, device])]
            state = cluster.mig_state(row, device)
            found = best_start(geometry, shape.mig_profile, state) if geometry else None
            if geometry and found:
                fullest = (-state.mask.bit_count(), *(-count for count in found[1]))
                options.setdefault(found[0], []).append((fullest, device))
        chosen = [(sorted(found)[: shape.gpu_count], start) for start, found in options.items()]
        full = [(picked, start) for picked, start in chosen if len(picked) == shape.gpu_count]
        if not full:
            return None
        picked, start = min(full)
        return NodePlacement(node=row, devices=tuple(sorted(d for _, d in picked)), mig_start=start)

    # ---------------------------------------------------------------------------------------- why not
    def reasons(self) -> npt.NDArray[np.int8]:
        """[N] codes: position in REASONS plus one of the first condition that fails on each node; 0 where it fits."""
        self.renew()
        cluster, shape = self.cluster, self.shape
        codes = np.zeros(cluster.node_count, np.int8)

        def fail(where: Bools, reason: Reason) -> None:
            codes[(codes == 0) & where] = _CODE[reason]

        if self.selected is not None:
            fail(~self.selected, Reason.SELECTOR_MISMATCH)
        if self.tolerated is not None:
            fail(~self.tolerated, Reason.TAINTED)
        if shape.gpu_count:
            fail(cluster.gpu_count == 0, Reason.NO_DEVICES)
            fail(cluster.gpu_count < shape.gpu_count, Reason.TOO_LARGE)
            if self.device_static is not None:
                fail(self.device_static.sum(axis=1) < shape.gpu_count, Reason.SELECTOR_MISMATCH)
        fail((cluster.cpu_milli < shape.cpu_milli) | (cluster.memory_mib < shape.memory_mib), Reason.TOO_LARGE)
        fail(~cluster.schedulable, Reason.UNHEALTHY)
        if shape.gpu_count:
            self._device_reasons(fail)
        fail(cluster.cpu_free_milli < shape.cpu_milli, Reason.NO_CPU)
        fail(cluster.memory_free_mib < shape.memory_mib, Reason.NO_HOST_MEMORY)
        if shape.gpu_count and shape.topology_required:
            fail(~self.fitting(), Reason.TOPOLOGY)
        return codes

    def _device_reasons(self, fail: Callable[[Bools, Reason], None]) -> None:
        """Narrow the devices condition by condition; the one after which too few are left is the reason."""
        cluster, shape = self.cluster, self.shape
        rows = np.arange(cluster.node_count)
        left: Bools = np.arange(cluster.width) < cluster.gpu_count[:, None]
        if self.device_static is not None:
            left &= self.device_static
        left &= cluster.gpu_healthy
        fail(left.sum(axis=1) < shape.gpu_count, Reason.UNHEALTHY)
        left &= self._mode_allows(rows)
        fail(left.sum(axis=1) < shape.gpu_count, Reason.MODE_CONFLICT)
        if not shape.mig_profile:
            fail((left & (cluster.gpu_free_milli >= shape.gpu_milli)).sum(axis=1) < shape.gpu_count, Reason.NO_CORES)
        known = left & self.devices(rows)
        fail(known.sum(axis=1) < shape.gpu_count, Reason.NO_CORES if shape.mig_profile else Reason.NO_MEMORY)


def reason_counts(codes: npt.NDArray[np.int8]) -> dict[Reason, int]:
    """Nodes per reason, most nodes first; nodes where the shape fits are left out."""
    counts = np.bincount(codes, minlength=len(REASONS) + 1)[1:]
    order = np.argsort(-counts, kind="stable")
    return {REASONS[code]: int(counts[code]) for code in order if counts[code]}
