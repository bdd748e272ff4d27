"""What the engine asks of a placement policy: one score per node, and the device for a share."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from calabash.sched.cluster.arrays import Cluster
from calabash.sched.cluster.columns import Floats, Rows
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


class Scorer(Protocol):
    """A policy bound to a cluster.

    Attributes:
        random_ties: equals are drawn from ``rng`` instead of taken in row order.
        note: what it prices beyond its usual terms at the moment, in words for people; empty when nothing.
        version: changes when scores that were given out are no longer comparable (tables were learned anew).
    """

    random_ties: bool
    note: str
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
