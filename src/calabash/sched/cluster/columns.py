"""Arrays of the cluster, one row per node and one column per device, and their growth when nodes are added.

Rows are in a fixed pseudo-random order of the nodes (``order_seed``). Taking the first row among equals is therefore first fit
in a random but fixed order: it consolidates requests, and no node is preferred because of its name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from calabash.model.errors import CalabashError
from calabash.model.nominal import nominal_memory_mib
from calabash.sched.cluster.mig_columns import MigColumns
from calabash.sched.cluster.mig_tables import geometry_of
from calabash.sched.cluster.shape import KINDS, WHOLE_MILLI
from calabash.sched.cluster.spec import NodeSpec

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.intp]

MODE_UNSET = 0
MODE_MIG = "mig"


class Columns(MigColumns):
    """Resident arrays of the nodes and devices of a cluster.

    Arrays of nodes are indexed by row, arrays of devices by row and index of the device. Entries of devices that a node
    does not have are zero. Other classes must not change the attributes.

    Attributes:
        cpu_milli, cpu_free_milli, memory_mib, memory_free_mib: host resources of a node, total and free.
        gpu_count: number of devices of a node.
        gpu_sum_milli: free compute of all devices of a node.
        gpu_whole_free: number of devices of a node whose compute is free.
        users: number of placements on a node.
        kind_users: number of placements on a node per class of request (``Shape.kind``).
        schedulable: False while the node is cordoned.
        gpu_free_milli, gpu_free_mib: free compute and memory of a device.
        gpu_mib, gpu_nominal_mib: memory of a device that the driver reports, and nominal memory of its card model.
        gpu_slices: slices that placements take of a device.
        gpu_services: factor of ``Shape.gpu_slices_max`` for a device: the number of its MPS services, else 1.
        gpu_best_effort: number of placements of best-effort compute on a device.
        gpu_users: number of placements on a device.
        gpu_mode: number of the sharing mode of a device (``mode_code``). gpu_pinned: True if the mode is fixed.
        gpu_healthy, gpu_model, gpu_card, gpu_island, gpu_numa: see ``GpuSpec``; models and cards are given by number.
        names, labels, taints: of the nodes, by row. row_of: row by name. removed: rows of removed nodes.
        levels: names of the levels of the network, outermost first. paths: names of the domains of the nodes, by row.
        paths_version: changes when paths or the set of nodes change. domains_cache: see ``domains.domains_of``.
        log: changed rows, oldest first, starting at position ``log_start``.
        static_version: changes when labels, taints or the set of nodes change.
    """

    def __init__(
        self,
        nodes: Sequence[NodeSpec],
        *,
        order_seed: int | None = 0,
        gpus_per_node_max: int = 0,
        levels: Sequence[str] = (),
    ) -> None:
        seen: set[str] = set()
        for node in nodes:
            if node.name in seen:
                raise CalabashError(f"node {node.name} is given twice", hint="node names must be unique")
            seen.add(node.name)
        order: Iterable[int] = range(len(nodes))
        if order_seed is not None:
            order = np.random.default_rng(order_seed).permutation(len(nodes)).tolist()
        self.width = max([1, gpus_per_node_max, *(len(node.gpus) for node in nodes)])
        self.names: list[str] = []
        self.labels: list[Mapping[str, str]] = []
        self.taints: list[tuple[str, ...]] = []
        self.row_of: dict[str, int] = {}
        self.models: dict[str, int] = {"": 0}
        self.cards: dict[str, int] = {"": 0}
        self.modes: dict[str, int] = {"": MODE_UNSET}
        self.levels = tuple(levels)
        self.paths: list[tuple[str, ...]] = []
        self.paths_version = 0
        self.domains_cache: tuple[int, object] | None = None
        super().__init__()
        self.static_version = 0
        self.has_unhealthy = False
        self.has_modes = False
        self.has_cordoned = False
        self.has_mixed = False
        self.gpu_tracked = False
        self.removed: set[int] = set()
        self.log: list[int] = []
        self.log_start = 0
        self._allocate(0)
        self._append([nodes[index] for index in order])

    _VECTORS: tuple[tuple[str, Any, Any], ...] = (
        ("cpu_free_milli", np.int64, 0), ("cpu_milli", np.int64, 0), ("memory_free_mib", np.int64, 0),
        ("memory_mib", np.int64, 0), ("gpu_count", np.int64, 0), ("gpu_sum_milli", np.int64, 0),
        ("gpu_whole_free", np.int64, 0), ("users", np.int64, 0),
        ("schedulable", np.bool_, True),
    )  # fmt: skip
    _MATRICES: tuple[tuple[str, Any, Any], ...] = (
        ("gpu_free_milli", np.int64, 0), ("gpu_free_mib", np.int64, 0), ("gpu_mib", np.int64, 0),
        ("gpu_nominal_mib", np.int64, 0), ("gpu_best_effort", np.int32, 0),
        ("gpu_users", np.int32, 0), ("gpu_slices", np.int32, 0), ("gpu_services", np.int32, 1),
        ("gpu_mode", np.int16, MODE_UNSET), ("gpu_pinned", np.bool_, False),
        ("gpu_healthy", np.bool_, True), ("gpu_model", np.int16, 0), ("gpu_card", np.int16, 0),
        ("gpu_island", np.int16, -1), ("gpu_numa", np.int16, -1), ("gpu_geometry", np.int16, 0),
    )  # fmt: skip
    cpu_free_milli: Ints
    cpu_milli: Ints
    memory_free_mib: Ints
    memory_mib: Ints
    gpu_count: Ints
    gpu_sum_milli: Ints
    gpu_whole_free: Ints
    users: Ints
    schedulable: Bools
    gpu_free_milli: Ints
    gpu_free_mib: Ints
    gpu_mib: Ints
    gpu_nominal_mib: Ints
    gpu_users: npt.NDArray[np.int32]
    gpu_best_effort: npt.NDArray[np.int32]
    gpu_slices: npt.NDArray[np.int32]
    gpu_services: npt.NDArray[np.int32]
    gpu_mode: npt.NDArray[np.int16]
    gpu_pinned: Bools
    gpu_healthy: Bools
    gpu_model: npt.NDArray[np.int16]
    gpu_card: npt.NDArray[np.int16]
    gpu_island: npt.NDArray[np.int16]
    gpu_numa: npt.NDArray[np.int16]
    kind_users: npt.NDArray[np.int32]

    def mode_code(self, mode: str) -> int:
        """Return the number of a sharing mode, which never changes."""
        return self.modes.setdefault(mode, len(self.modes))

    def keep_mode(self, row: int, device: int, mode: str) -> None:
        """Pin a device to a sharing mode. With the mode ``""`` it is unpinned: it serves any mode when idle.

        Placements on the device are not affected.
        """
        self.gpu_pinned[row, device] = bool(mode)
        if mode:
            self.gpu_mode[row, device] = self.mode_code(mode)
            self.has_modes = True
        elif self.gpu_users[row, device] == 0:
            self.gpu_mode[row, device] = MODE_UNSET

    def _allocate(self, count: int) -> None:
        """Grow all arrays to ``count`` rows, keeping their contents."""
        old = len(self.names)
        for name, dtype, fill in self._VECTORS:
            grown: npt.NDArray[Any] = np.full(count, fill, dtype)
            if old:
                grown[:old] = getattr(self, name)
            setattr(self, name, grown)
        for name, dtype, fill in self._MATRICES:
            matrix: npt.NDArray[Any] = np.full((count, self.width), fill, dtype)
            if old:
                matrix[:old] = getattr(self, name)
            setattr(self, name, matrix)
        kinds = np.zeros((count, KINDS), np.int32)
        if old:
            kinds[:old] = self.kind_users
        self.kind_users = kinds

    def _append(self, nodes: Sequence[NodeSpec]) -> None:
        first = len(self.names)
        self._allocate(first + len(nodes))
        for row, node in enumerate(nodes, first):
            self.names.append(node.name)
            self.labels.append(node.labels)
            self.taints.append(tuple(node.taints))
            self.paths.append(node.domains)
            self._write(row, node)
        self.static_version += 1
        self.paths_version += 1

    def remove_node(self, row: int) -> None:
        """Remove a node. Its name can be used again; its row is reused for another node once no placement uses it."""
        del self.row_of[self.names[row]]
        for key in [key for key in self.mig_instances if key[0] == row]:
            del self.mig_instances[key]
        self.removed.add(row)

    def relabel(self, row: int, labels: Mapping[str, str], taints: Sequence[str]) -> None:
        """Replace the labels and taints of a node. Placements on it are not affected."""
        self.labels[row], self.taints[row] = labels, tuple(taints)
        self.static_version += 1

    def set_levels(self, levels: Sequence[str], paths: Mapping[str, Sequence[str]]) -> None:
        """Replace the levels of the network, and the paths of all nodes. Placements are not affected.

        Args:
            paths: names of the domains by name of the node; a node that is not in it belongs to no known domain.
        """
        self.levels = tuple(levels)
        self.paths = [tuple(paths.get(name, ())) for name in self.names]
        self.paths_version += 1

    def _replace(self, row: int, node: NodeSpec) -> None:
        """Write a node into the row of a removed node."""
        self.removed.discard(row)
        for name, _, fill in (*self._VECTORS, *self._MATRICES):
            getattr(self, name)[row] = fill
        self.kind_users[row] = 0
        self.names[row], self.labels[row], self.taints[row] = node.name, node.labels, tuple(node.taints)
        self.paths[row] = node.domains
        self._write(row, node)
        self.static_version += 1
        self.paths_version += 1

    def _write(self, row: int, node: NodeSpec) -> None:
        self.row_of[node.name] = row
        self.cpu_milli[row] = self.cpu_free_milli[row] = node.cpu_milli
        self.memory_mib[row] = self.memory_free_mib[row] = node.memory_mib
        count = len(node.gpus)
        self.gpu_count[row] = count
        self.gpu_sum_milli[row] = WHOLE_MILLI * count
        self.gpu_whole_free[row] = count
        self.gpu_free_milli[row, :count] = WHOLE_MILLI
        for device, gpu in enumerate(node.gpus):
            self.gpu_free_mib[row, device] = self.gpu_mib[row, device] = gpu.memory_mib
            self.gpu_nominal_mib[row, device] = nominal_memory_mib(gpu.memory_mib, gpu.card or gpu.model)
            self.gpu_model[row, device] = self.models.setdefault(gpu.model, len(self.models))
            self.gpu_card[row, device] = self.cards.setdefault(gpu.card or gpu.model, len(self.cards))
            self.has_mixed |= bool(self.gpu_card[row, device] != self.gpu_card[row, 0])
            self.gpu_tracked |= gpu.memory_mib > 0
            self.gpu_island[row, device] = gpu.island
            self.gpu_numa[row, device] = gpu.numa
            self.gpu_healthy[row, device] = gpu.healthy
            self.has_unhealthy |= not gpu.healthy
            geometry = gpu.geometry
            if gpu.mode:
                self.gpu_mode[row, device] = self.mode_code(gpu.mode)
                self.gpu_pinned[row, device] = True
                self.has_modes = True
                if gpu.mode == MODE_MIG and geometry is None:
                    geometry = geometry_of(gpu.model, gpu.memory_mib)
            if geometry is not None:
                if geometry not in self.geometries:
                    self.geometries.append(geometry)
                self.gpu_geometry[row, device] = self.geometries.index(geometry)
