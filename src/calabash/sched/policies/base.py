"""The part that all policies share: what fits, and the fullest sufficient device."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from calabash.sched.cluster.arrays import Cluster
from calabash.sched.cluster.columns import Bools, Floats, Ints, Rows
from calabash.sched.cluster.demand import Demand
from calabash.sched.cluster.fit import CompiledShape
from calabash.sched.cluster.scoring import Devices, PlacementPolicy
from calabash.sched.cluster.shape import Shape

# Makes a policy for what is known of the demand and for a seed; what a policy does not need it does not look at.
Maker = Callable[[Demand | None, int], PlacementPolicy]


class ScorerBase:
    """Defaults of a scorer, and the two things that every policy needs: what fits, and the fullest sufficient device."""

    random_ties = False
    note = ""

    def __init__(self, cluster: Cluster, *, seed: int = 0) -> None:
        self.cluster = cluster
        self.version = 0
        self.rng = np.random.default_rng(seed)

    def observe(self, shape: Shape) -> None:
        """Nothing is learned."""

    def device(self, compiled: CompiledShape, row: int, device: int) -> int:
        """The device that was scored."""
        return device

    def fits(self, compiled: CompiledShape, rows: Rows) -> tuple[Bools, Bools | None]:
        """(nodes [rows], devices [rows, G] or None for CPU-only shapes)."""
        devices = compiled.devices(rows) if compiled.shape.gpu_count else None
        return compiled.nodes(rows, devices), devices

    def fullest(self, rows: Rows, devices: Bools) -> Devices:
        """[rows] the fitting device with the least free compute, then memory, lowest index first."""
        gaps: Ints = self.cluster.gpu_free_milli[rows]
        keyed = np.where(devices, gaps, np.iinfo(np.int64).max)
        if self.cluster.gpu_tracked:
            keyed = np.where(devices, gaps * (1 << 40) + self.cluster.gpu_free_mib[rows], np.iinfo(np.int64).max)
        found: Devices = keyed.argmin(axis=1).astype(np.int8)
        return found


def masked(scores: Floats, ok: Bools) -> Floats:
    """Scores with minus infinity where it does not fit."""
    return np.where(ok, scores, -np.inf)
