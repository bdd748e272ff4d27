"""Base class of scorers: feasibility of a shape, and the fullest sufficient device."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from calabash.sched.cluster.arrays import Cluster
from calabash.sched.cluster.columns import Bools, Floats, Ints, Rows
from calabash.sched.cluster.demand import Demand
from calabash.sched.cluster.fit import CompiledShape
from calabash.sched.cluster.scoring import Devices, PlacementPolicy
from calabash.sched.cluster.shape import Shape

Maker = Callable[[Demand | None, int], PlacementPolicy]
"""Creates a policy from a known demand (None: unknown) and a random seed; policies ignore what they do not need."""


class ScorerBase:
    """Default implementation of ``Scorer`` without learning, with helpers for feasibility and for the choice of a device."""

    random_ties = False
    note = ""

    def __init__(self, cluster: Cluster, *, seed: int = 0) -> None:
        self.cluster = cluster
        self.version = 0
        self.rng = np.random.default_rng(seed)

    def observe(self, shape: Shape) -> None:
        """Do nothing: the policy does not learn."""

    def device(self, compiled: CompiledShape, row: int, device: int) -> int:
        """Return ``device``, which ``score`` chose: the policy does not replace it."""
        return device

    def fits(self, compiled: CompiledShape, rows: Rows) -> tuple[Bools, Bools | None]:
        """Return masks of the nodes where the shape fits and of the devices that can serve it.

        The second mask is None for a CPU-only shape.
        """
        devices = compiled.devices(rows) if compiled.shape.gpu_count else None
        return compiled.nodes(rows, devices), devices

    def fullest(self, rows: Rows, devices: Bools) -> Devices:
        """Return for each node in ``rows`` the index of the fullest device that can serve a slice.

        The fullest device has the least free compute; then the least free memory and the lowest index decide.

        Args:
            devices: mask of the devices that can serve the slice.
        """
        gaps: Ints = self.cluster.gpu_free_milli[rows]
        keyed = np.where(devices, gaps, np.iinfo(np.int64).max)
        if self.cluster.gpu_tracked:
            keyed = np.where(devices, gaps * (1 << 40) + self.cluster.gpu_free_mib[rows], np.iinfo(np.int64).max)
        found: Devices = keyed.argmin(axis=1).astype(np.int8)
        return found


def masked(scores: Floats, ok: Bools) -> Floats:
    """Return the scores with minus infinity where ``ok`` is False."""
    return np.where(ok, scores, -np.inf)
