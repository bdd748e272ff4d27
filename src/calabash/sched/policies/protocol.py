"""What a policy is asked, and the part that all policies share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from calabash.sched.cluster.arrays import Bools, Cluster, Floats, Ints, Rows
from calabash.sched.cluster.demand import Demand
from calabash.sched.cluster.fit import Compiled
from calabash.sched.cluster.shape import Shape

Devices = npt.NDArray[np.int8]
Scored = tuple[Floats, Devices | None]


class PlacementPolicy(Protocol):
    """A way to prefer nodes; values only, shared by any number of clusters."""

    @property
    def name(self) -> str:
        """Name in reports and on the command line."""
        ...

    def bind(self, cluster: Cluster) -> Scorer:
        """The policy at work on one cluster."""
        ...


# Makes a policy for what is known of the demand and for a seed; what a policy does not need it does not look at.
Maker = Callable[[Demand | None, int], PlacementPolicy]


class Scorer(Protocol):
    """A policy bound to a cluster.

    Attributes:
        random_ties: equals are drawn from ``rng`` instead of taken in row order.
        version: changes when scores that were given out are no longer comparable (tables were learned anew).
    """

    random_ties: bool
    version: int
    rng: np.random.Generator

    def observe(self, shape: Shape) -> None:
        """A request of this shape has arrived."""
        ...

    def score(self, compiled: Compiled, rows: Rows) -> Scored:
        """Scores [rows] (larger is better, minus infinity where it does not fit); device [rows] for fractions."""
        ...

    def device(self, compiled: Compiled, row: int, device: int) -> int:
        """The device to use on the chosen row, given the one that ``score`` named."""
        ...


class ScorerBase:
    """Defaults of a scorer, and the two things that every policy needs: what fits, and the fullest sufficient device."""

    random_ties = False

    def __init__(self, cluster: Cluster, *, seed: int = 0) -> None:
        self.cluster = cluster
        self.version = 0
        self.rng = np.random.default_rng(seed)

    def observe(self, shape: Shape) -> None:
        """Nothing is learned."""

    def device(self, compiled: Compiled, row: int, device: int) -> int:
        """The device that was scored."""
        return device

    def fits(self, compiled: Compiled, rows: Rows) -> tuple[Bools, Bools | None]:
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
