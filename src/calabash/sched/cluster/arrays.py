"""The cluster as resident arrays: one row per node, one column per device.

Theory of operation. All state that placement depends on is in a few numpy arrays which live as long as the cluster.
``place`` and ``release`` change the entries of one row, in integers, so that one is exactly the reverse of the other,
and append the row to a change log. Readers (the engine's score caches, explanations, consoles) keep a cursor into
the log and look only at rows that changed since; nothing is ever copied per cycle. What-if questions are asked by
placing and releasing again.

Rows are in a fixed pseudo-random order of the nodes (``order_seed``), so that "the first row among equals" is first fit
in a random but fixed order: it consolidates, and no node name is preferred.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from calabash.model.errors import CalabashError, Reason
from calabash.sched.cluster.mig import MigGeometry, MigState, geometry_of, legal_starts, occupied, vacated
from calabash.sched.cluster.shape import WHOLE_MILLI, NodePlacement, Shape

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.intp]

MODE_UNSET = 0
MODE_MIG = "mig"
_LOG_MIN = 4096
KINDS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSpec:
    """One device of a node.

    Args:
        model: name by which requests select it.
        card: the physical model, where ``model`` names something finer (a single device); "" is the same as ``model``.
        memory_mib: its memory; 0 when unknown (then only compute is scheduled).
        island: number of its NVLink island within the node, -1 when it has no NVLink.
        numa: NUMA node, -1 when unknown.
        healthy: takes new work.
        mode: sharing mode that is fixed by its operator; "" follows demand.
        geometry: its MIG profiles as read from the driver; None takes the table for the model when ``mode`` is mig.
    """

    model: str = ""
    card: str = ""
    memory_mib: int = 0
    island: int = -1
    numa: int = -1
    healthy: bool = True
    mode: str = ""
    geometry: MigGeometry | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSpec:
    """A node with everything free. ``taints`` are ``key=value:Effect``; ``rack`` names its switch or block."""

    name: str
    cpu_milli: int
    memory_mib: int
    gpus: tuple[GpuSpec, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[str, ...] = ()
    rack: str = ""


class Cluster:
    """Resident arrays; N nodes, G the largest number of devices of a node (columns beyond a node's count stay zero).

    Attributes (all of them read-only for others; shapes in brackets):
        cpu_free_milli, cpu_milli, memory_free_mib, memory_mib [N]: host resources, free and whole.
        gpu_count [N]; gpu_free_milli, gpu_free_mib, gpu_mib [N, G]: devices.
        gpu_users, gpu_mode, gpu_pinned, gpu_healthy, gpu_model, gpu_card, gpu_island, gpu_numa [N, G].
        kind_users [N, KINDS]: placements per class of request (``kind_of``).
        schedulable [N]: False while cordoned. rack [N].
        gpu_sum_milli, gpu_whole_free [N]: free compute over the node's devices, devices with all of it free.
        users [N]: placements on the node.
        names, labels, taints: per row. row_of: name -> row.
        log: changed rows, oldest first, starting at position ``log_start``.
        static_version: changes when labels, taints or the set of nodes change.
    """

    def __init__(self, nodes: Sequence[NodeSpec], *, order_seed: int | None = 0, gpus_per_node_max: int = 0) -> None:
        seen: set[str] = set()
        for node in nodes:
            if node.name in seen:
                raise CalabashError(f"node {node.name} is there twice", hint="node names are unique")
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
        self.racks: dict[str, int] = {"": -1}
        self.geometries: list[MigGeometry | None] = [None]
        self.mig_states: dict[tuple[int, int], MigState] = {}
        self.static_version = 0
        self.has_unhealthy = False
        self.has_modes = False
        self.has_cordoned = False
        self.has_mixed = False
        self.gpu_tracked = False
        self.log: list[int] = []
        self.log_start = 0
        self._allocate(0)
        self._append([nodes[index] for index in order])

    # -------------------------------------------------------------------------------------------- construction
    _VECTORS: tuple[tuple[str, Any, Any], ...] = (
        ("cpu_free_milli", np.int64, 0), ("cpu_milli", np.int64, 0), ("memory_free_mib", np.int64, 0),
        ("memory_mib", np.int64, 0), ("gpu_count", np.int64, 0), ("gpu_sum_milli", np.int64, 0),
        ("gpu_whole_free", np.int64, 0), ("users", np.int64, 0),
        ("schedulable", np.bool_, True), ("rack", np.int32, -1),
    )  # fmt: skip
    _MATRICES: tuple[tuple[str, Any, Any], ...] = (
        ("gpu_free_milli", np.int64, 0), ("gpu_free_mib", np.int64, 0), ("gpu_mib", np.int64, 0),
        ("gpu_users", np.int32, 0), ("gpu_mode", np.int16, MODE_UNSET), ("gpu_pinned", np.bool_, False),
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
    rack: npt.NDArray[np.int32]
    gpu_free_milli: Ints
    gpu_free_mib: Ints
    gpu_mib: Ints
    gpu_users: npt.NDArray[np.int32]
    gpu_mode: npt.NDArray[np.int16]
    gpu_pinned: Bools
    gpu_healthy: Bools
    gpu_model: npt.NDArray[np.int16]
    gpu_card: npt.NDArray[np.int16]
    gpu_island: npt.NDArray[np.int16]
    gpu_numa: npt.NDArray[np.int16]
    gpu_geometry: npt.NDArray[np.int16]
    kind_users: npt.NDArray[np.int32]

    def _allocate(self, count: int) -> None:
        """Make all arrays ``count`` rows long, keeping what is there."""
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
            self._write(row, node)
        self.static_version += 1

    def _write(self, row: int, node: NodeSpec) -> None:
        self.names.append(node.name)
        self.labels.append(node.labels)
        self.taints.append(tuple(node.taints))
        self.row_of[node.name] = row
        self.cpu_milli[row] = self.cpu_free_milli[row] = node.cpu_milli
        self.memory_mib[row] = self.memory_free_mib[row] = node.memory_mib
        self.rack[row] = self.racks.setdefault(node.rack, len(self.racks) - 1)
        count = len(node.gpus)
        self.gpu_count[row] = count
        self.gpu_sum_milli[row] = WHOLE_MILLI * count
        self.gpu_whole_free[row] = count
        self.gpu_free_milli[row, :count] = WHOLE_MILLI
        for device, gpu in enumerate(node.gpus):
            self.gpu_free_mib[row, device] = self.gpu_mib[row, device] = gpu.memory_mib
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

    # -------------------------------------------------------------------------------------------- questions
    @property
    def node_count(self) -> int:
        """Rows, cordoned ones included."""
        return len(self.names)

    @property
    def gpu_total(self) -> int:
        """Devices of all nodes."""
        return int(self.gpu_count.sum())

    @property
    def position(self) -> int:
        """Where the change log ends: a cursor for a reader that has seen everything."""
        return self.log_start + len(self.log)

    def changed_since(self, cursor: int) -> list[int] | None:
        """Rows that changed after ``cursor``, perhaps repeated; None when the log does not reach back so far."""
        if cursor < self.log_start:
            return None
        return self.log[cursor - self.log_start :]

    @staticmethod
    def kind_of(shape: Shape) -> int:
        """Class of a request by its devices: 0 a share, 1 one card, 2 two, 3 up to four, 4 more."""
        if not shape.whole:
            return 0
        return min(4, 1 + (shape.gpu_count - 1).bit_length())

    def mode_code(self, mode: str) -> int:
        """Stable small number of a sharing mode."""
        return self.modes.setdefault(mode, len(self.modes))

    def row(self, name: str) -> int:
        """Row of a node; raises CalabashError when there is none of that name."""
        try:
            return self.row_of[name]
        except KeyError:
            raise CalabashError(
                f"node {name!r} is not in the cluster of {self.node_count} nodes",
                reason=Reason.NOT_FOUND,
                hint="check the name of the node",
            ) from None

    def mig_state(self, row: int, device: int) -> MigState:
        """What MIG instances take of a device."""
        return self.mig_states.get((row, device), MigState())

    # -------------------------------------------------------------------------------------------- changes
    def touch(self, row: int) -> None:
        """Note that a row changed."""
        self.log.append(row)
        if len(self.log) > max(_LOG_MIN, 4 * self.node_count):
            cut = len(self.log) // 2
            del self.log[:cut]
            self.log_start += cut

    def amounts(self, shape: Shape, row: int, device: int) -> tuple[int, int]:
        """What one device gives to the shape: (milli, MiB)."""
        if shape.mig_profile:
            geometry = self.geometries[int(self.gpu_geometry[row, device])]
            profile = geometry.profile(shape.mig_profile) if geometry else None
            if geometry is None or profile is None:
                raise CalabashError(
                    f"device {device} of {self.names[row]} has no MIG profile {shape.mig_profile}",
                    reason=Reason.SELECTOR_MISMATCH,
                    hint="choose a profile that the device lists",
                )
            memory = min(profile.memory_mib, int(self.gpu_mib[row, device]) // geometry.slices * profile.slices)
            return WHOLE_MILLI * profile.compute // geometry.compute, memory
        if shape.whole:
            return WHOLE_MILLI, int(self.gpu_mib[row, device])
        return shape.gpu_milli, shape.gpu_memory_mib

    def place(self, shape: Shape, placement: NodePlacement) -> None:
        """Take the resources. Raises CalabashError, with nothing changed, when they are not there."""
        row = placement.node
        if self.cpu_free_milli[row] < shape.cpu_milli or self.memory_free_mib[row] < shape.memory_mib:
            self._refuse(row, "CPU or memory")
        if len(placement.devices) != shape.gpu_count or len(set(placement.devices)) != shape.gpu_count:
            self._refuse(row, f"{len(placement.devices)} devices named for {shape.gpu_count}")
        if shape.gpu_count:
            taken = [(device, *self._checked(shape, placement, device)) for device in placement.devices]
            mode = self.mode_code(shape.mode or (MODE_MIG if shape.mig_profile else ""))
            total = 0
            for device, milli, mib in taken:
                if self.gpu_free_milli[row, device] == WHOLE_MILLI and milli:
                    self.gpu_whole_free[row] -= 1
                self.gpu_free_milli[row, device] -= milli
                if mib:
                    self.gpu_free_mib[row, device] -= mib
                self.gpu_users[row, device] += 1
                if mode:
                    self.gpu_mode[row, device] = mode
                    self.has_modes = True
                total += milli
            self.gpu_sum_milli[row] -= total
            if shape.mig_profile:
                self._cut(shape, placement, occupied)
            self.kind_users[row, self.kind_of(shape)] += 1
        self.cpu_free_milli[row] -= shape.cpu_milli
        self.memory_free_mib[row] -= shape.memory_mib
        self.users[row] += 1
        self.touch(row)

    def release(self, shape: Shape, placement: NodePlacement) -> None:
        """Give back exactly what ``place`` took."""
        row = placement.node
        if self.users[row] < 1:
            self._refuse(row, "release of something that was never placed")
        total = 0
        for device in placement.devices:
            milli, mib = self.amounts(shape, row, device)
            if self.gpu_users[row, device] < 1 or self.gpu_free_milli[row, device] + milli > WHOLE_MILLI:
                self._refuse(row, f"release of device {device} that was never taken")
            self.gpu_free_milli[row, device] += milli
            if self.gpu_free_milli[row, device] == WHOLE_MILLI and milli:
                self.gpu_whole_free[row] += 1
            if mib:
                self.gpu_free_mib[row, device] += mib
            self.gpu_users[row, device] -= 1
            if self.has_modes and self.gpu_users[row, device] == 0 and not self.gpu_pinned[row, device]:
                self.gpu_mode[row, device] = MODE_UNSET
            total += milli
        if shape.mig_profile:
            self._cut(shape, placement, vacated)
        if shape.gpu_count:
            self.kind_users[row, self.kind_of(shape)] -= 1
        self.gpu_sum_milli[row] += total
        self.cpu_free_milli[row] += shape.cpu_milli
        self.memory_free_mib[row] += shape.memory_mib
        self.users[row] -= 1
        self.touch(row)

    def _checked(self, shape: Shape, placement: NodePlacement, device: int) -> tuple[int, int]:
        """(milli, MiB) of a device that has them free in the right mode; raises otherwise."""
        row = placement.node
        if not 0 <= device < self.gpu_count[row]:
            self._refuse(row, f"device {device} does not exist")
        milli, mib = self.amounts(shape, row, device)
        if self.gpu_free_milli[row, device] < milli:
            self._refuse(row, f"device {device} has {self.gpu_free_milli[row, device]} of {milli} milli")
        if self.gpu_free_mib[row, device] < mib:
            self._refuse(row, f"device {device} has {self.gpu_free_mib[row, device]} of {mib} MiB")
        if self.has_modes or shape.mode:
            mode = self.mode_code(shape.mode or (MODE_MIG if shape.mig_profile else ""))
            free = self.gpu_users[row, device] == 0 and not self.gpu_pinned[row, device]
            if not free and self.gpu_mode[row, device] != mode:
                self._refuse(row, f"device {device} is in another sharing mode")
        if shape.mig_profile:
            geometry = self.geometries[int(self.gpu_geometry[row, device])]
            profile = geometry.profile(shape.mig_profile) if geometry else None
            if geometry is None or profile is None:
                self._refuse(row, f"device {device} has no profile {shape.mig_profile}")
            elif placement.mig_start not in legal_starts(geometry, profile, self.mig_state(row, device)):
                self._refuse(row, f"device {device} has no room for {shape.mig_profile} at {placement.mig_start}")
        return milli, mib

    def _cut(self, shape: Shape, placement: NodePlacement, change: Any) -> None:
        for device in placement.devices:
            geometry = self.geometries[int(self.gpu_geometry[placement.node, device])]
            profile = geometry.profile(shape.mig_profile) if geometry else None
            if profile is not None:
                key = (placement.node, device)
                state = change(self.mig_state(*key), profile, placement.mig_start)
                if state == MigState():
                    self.mig_states.pop(key, None)
                else:
                    self.mig_states[key] = state

    def _refuse(self, row: int, what: str) -> None:
        raise CalabashError(
            f"{self.names[row]} cannot take this placement: {what}",
            reason=Reason.NO_CAPACITY,
            hint="decide again: the node changed since the placement was planned",
        )

    def add_node(self, node: NodeSpec) -> int:
        """Append a node as the last row (rows of others never change); returns the row."""
        if node.name in self.row_of:
            raise CalabashError(f"node {node.name} is there already", reason=Reason.CONFLICT, hint="remove it first")
        if len(node.gpus) > self.width:
            raise CalabashError(
                f"node {node.name} has {len(node.gpus)} devices, the cluster was made for {self.width}",
                hint="build the cluster with a larger gpus_per_node_max",
            )
        self._append([node])
        row = self.node_count - 1
        self.touch(row)
        return row

    def cordon(self, row: int, *, schedulable: bool = False) -> None:
        """Take a node out of (or back into) service; what runs there is untouched."""
        self.schedulable[row] = schedulable
        self.has_cordoned = not bool(self.schedulable.all())
        self.touch(row)

    def set_health(self, row: int, device: int, *, healthy: bool) -> None:
        """Take a device out of (or back into) service; what runs there is untouched."""
        self.gpu_healthy[row, device] = healthy
        self.has_unhealthy = not bool(self.gpu_healthy.all())
        self.touch(row)

    def relabel(self, row: int, *, labels: Mapping[str, str], taints: Sequence[str]) -> None:
        """Replace labels and taints of a node."""
        self.labels[row] = labels
        self.taints[row] = tuple(taints)
        self.static_version += 1
        self.touch(row)
