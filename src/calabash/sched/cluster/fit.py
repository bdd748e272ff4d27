"""Feasibility of a shape on nodes and devices, as vectors over rows.

A shape is compiled once per cluster: conditions on labels, taints and device models become a mask of nodes and, if needed, of
devices. Amounts, which change with every placement, are compared for the rows of a query. ``explain.reasons`` finds the reason
why a node does not fit.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from calabash.model.mig import MigGeometry, MigState
from calabash.model.mig_plan import place_together
from calabash.sched.cluster.arrays import Cluster
from calabash.sched.cluster.columns import MODE_MIG, Bools, Ints, Rows
from calabash.sched.cluster.shape import WHOLE_MILLI, Shape, Topology, parse_expression, tolerates

# Larger than any number of requests on a node; the count of a shape that needs nothing.
COUNT_MAX = 1 << 30


@lru_cache(maxsize=4096)
def _has(geometry: MigGeometry, names: tuple[str, ...]) -> bool:
    """Return True if MIG instances of all of these profiles fit together on an empty device with this geometry."""
    if len(names) == 1:
        return geometry.profile(names[0]) is not None
    return place_together(geometry, names, MigState(), ()) is not None


class CompiledShape:
    """A shape compiled for one cluster.

    Attributes:
        selected, tolerated: masks of the nodes whose labels match and whose taints are tolerated; None if all are.
        static: mask of the nodes that are both selected and tolerated; None if all nodes are.
        device_static: mask of the devices of the right model and card memory, by row and device; None if all are.
        mode: number of the shape's sharing mode.
        version: ``static_version`` of the cluster for which the masks were computed.
    """

    __slots__ = ("cluster", "device_static", "mode", "selected", "shape", "static", "tolerated", "version")

    def __init__(self, cluster: Cluster, shape: Shape) -> None:
        self.cluster = cluster
        self.shape = shape
        self.mode = cluster.mode_code(shape.mode or (MODE_MIG if shape.mig_profile else ""))
        self.version = -1
        self.renew()

    def renew(self) -> None:
        """Recompute the masks if labels, taints or the set of nodes have changed."""
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
            mask &= cluster.gpu_nominal_mib >= shape.card_memory_mib_min
        if shape.card_memory_mib_max:
            mask &= cluster.gpu_nominal_mib <= shape.card_memory_mib_max
        return mask

    @property
    def plain(self) -> bool:
        """Return True if only amounts of CPU, host memory and compute decide whether the shape fits.

        The shape then has no masks, sharing mode, MIG profile, device memory or limited number of slices; all nodes are
        schedulable and all devices healthy.
        """
        cluster, shape = self.cluster, self.shape
        special = cluster.has_modes or cluster.has_unhealthy or cluster.has_cordoned or cluster.gpu_tracked or self.mode
        masked = self.static is not None or self.device_static is not None
        special = special or bool(shape.gpu_memory_mib or shape.gpu_slices_max)
        return not (special or masked or shape.mig_profile or shape.topology_required) and (
            shape.fraction or shape.whole or not shape.gpu_count
        )

    # ---- what fits now -----------------------------------------------------------------------------------------------------
    def devices(self, rows: Rows, gaps: Ints | None = None) -> Bools:
        """Return a mask of the devices that can serve the shape now.

        The mask has one row per node in ``rows`` and one column per device, as the other masks of devices have.

        Args:
            gaps: free compute of these devices in milli, if the caller has it already.
        """
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
        if shape.gpu_slices_max:
            fits &= self.slices_allow(rows)
        if self.device_static is not None:
            fits &= self.device_static[rows]
        if cluster.has_unhealthy:
            fits &= cluster.gpu_healthy[rows]
        if cluster.has_modes or self.mode:
            fits &= self.mode_allows(rows)
        return fits

    def if_idle(self, rows: Rows) -> Bools:
        """Return a mask of the devices that would serve a shape of whole devices if they were idle."""
        cluster = self.cluster
        allowed: Bools = np.arange(cluster.width) < cluster.gpu_count[rows][:, None]
        if self.device_static is not None:
            allowed &= self.device_static[rows]
        allowed &= cluster.gpu_healthy[rows]
        if cluster.has_modes or self.mode:
            allowed &= ~cluster.gpu_pinned[rows] | (cluster.gpu_mode[rows] == self.mode)
        if self.static is not None:
            allowed &= self.static[rows][:, None]
        allowed &= cluster.schedulable[rows][:, None]
        return allowed

    def slices_allow(self, rows: Rows) -> Bools:
        """Return a mask of the devices that have enough slices left for the shape."""
        cluster, shape = self.cluster, self.shape
        most = shape.gpu_slices_max * cluster.gpu_services[rows]
        allowed: Bools = cluster.gpu_slices[rows] + shape.gpu_slices <= most
        return allowed

    def mode_allows(self, rows: Rows) -> Bools:
        """Return a mask of the devices that are in the shape's sharing mode, or idle and not pinned to a mode."""
        cluster = self.cluster
        idle = (cluster.gpu_users[rows] == 0) & ~cluster.gpu_pinned[rows]
        allowed: Bools = idle | (cluster.gpu_mode[rows] == self.mode)
        return allowed

    def _mig(self, rows: Rows) -> Bools:
        """Return a mask of the devices where the shape's MIG profiles fit."""
        cluster, names = self.cluster, self.shape.mig_profiles
        known = [g is not None and _has(g, names) for g in cluster.geometries]
        fits = np.array(known, np.bool_)[cluster.gpu_geometry[rows]]
        fits &= (cluster.gpu_free_milli[rows] == WHOLE_MILLI) | (cluster.gpu_mode[rows] == self.mode)
        for index, device in zip(*np.nonzero(fits), strict=True):
            row, number = int(rows[index]), int(device)
            if (row, number) in cluster.mig_states or (row, number) in cluster.mig_instances:
                fits[index, device] = cluster.mig_fits(row, number, names)
        return fits

    def nodes(self, rows: Rows, fits: Bools | None) -> Bools:
        """Return a mask of the nodes where the shape fits, with one entry per node in ``rows``.

        Args:
            fits: result of ``devices`` for the rows; None for a CPU-only shape.
        """
        cluster, shape = self.cluster, self.shape
        ok: Bools = cluster.cpu_free_milli[rows] >= shape.cpu_milli
        ok &= cluster.memory_free_mib[rows] >= shape.memory_mib
        if fits is not None:
            ok &= fits.any(axis=1) if shape.gpu_count == 1 else fits.sum(axis=1) >= shape.gpu_count
            if shape.topology_required and shape.gpu_count > 1:
                ok &= self._most_in_one_group(rows, fits) >= shape.gpu_count
        if self.static is not None:
            ok &= self.static[rows]
        if cluster.has_cordoned:
            ok &= cluster.schedulable[rows]
        return ok

    @property
    def counted(self) -> bool:
        """Return True if ``count`` is exact.

        That is so for shapes of which as many fit in any order of placements: without MIG, a limit of slices or a
        required topology, and for whole devices or at most one device.
        """
        shape = self.shape
        simple = not (shape.mig_profile or shape.gpu_slices_max or shape.topology_required)
        return simple and (shape.whole or shape.gpu_count <= 1)

    def count(self, rows: Rows) -> Ints:
        """Return for each node in ``rows`` the number of requests of the shape that fit there at the same time.

        The number is exact if ``counted`` is True, and otherwise an upper bound.
        """
        cluster, shape = self.cluster, self.shape
        most = np.full(len(rows), COUNT_MAX)
        fits = self.devices(rows) if shape.gpu_count else None
        if shape.cpu_milli:
            np.minimum(most, cluster.cpu_free_milli[rows] // shape.cpu_milli, out=most)
        if shape.memory_mib:
            np.minimum(most, cluster.memory_free_mib[rows] // shape.memory_mib, out=most)
        if fits is not None and not shape.mig_profile:
            each = fits.astype(np.int64)
            if not shape.whole:
                each *= COUNT_MAX
                if shape.gpu_milli:
                    np.minimum(each, cluster.gpu_free_milli[rows] // shape.gpu_milli, out=each)
                if shape.gpu_memory_mib:
                    np.minimum(each, cluster.gpu_free_mib[rows] // shape.gpu_memory_mib, out=each)
            np.minimum(most, each.sum(axis=1) // shape.gpu_count, out=most)
        most[~self.nodes(rows, fits)] = 0
        return most

    def groups(self, rows: Rows) -> Ints:
        """Return for each device the number of its NUMA node if the topology of the shape is NUMA, else of its island.

        The result has one row per node in ``rows`` and one column per device.
        """
        cluster = self.cluster
        matrix = cluster.gpu_numa if self.shape.topology is Topology.NUMA else cluster.gpu_island
        return matrix[rows].astype(np.int64)

    def _most_in_one_group(self, rows: Rows, fits: Bools) -> Ints:
        """Return for each node in ``rows`` the largest number of devices that are in one NVLink island or NUMA node.

        Args:
            fits: mask of the devices that are counted.
        """
        groups = self.groups(rows)
        most = np.zeros(len(rows), np.int64)
        for group in range(int(groups.max(initial=-1)) + 1):
            np.maximum(most, (fits & (groups == group)).sum(axis=1), out=most)
        return most

    def fitting(self, rows: Rows | None = None) -> Bools:
        """Return a mask of the nodes where the shape fits now, with one entry per node in ``rows`` (None: all)."""
        self.renew()
        if rows is None:
            rows = np.arange(self.cluster.node_count)
        return self.nodes(rows, self.devices(rows) if self.shape.gpu_count else None)
