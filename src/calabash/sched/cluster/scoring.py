"""Interface of placement policies: scores of nodes for a shape, and the device for a slice."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from calabash.sched.cluster.arrays import Cluster
from calabash.sched.cluster.columns import Floats, Rows
from calabash.sched.cluster.fit import CompiledShape
from calabash.sched.cluster.shape import Shape

Devices = npt.NDArray[np.int8]
Scored = tuple[Floats, Devices | None]


class PlacementPolicy(Protocol):
    """A placement policy: immutable configuration, which can be used for several clusters."""

    @property
    def name(self) -> str:
        """Return the name for reports and the command line."""
        ...

    def bind(self, cluster: Cluster) -> Scorer:
        """Return a scorer of the policy for one cluster."""
        ...


class Scorer(Protocol):
    """A policy bound to a cluster.

    Attributes:
        random_ties: of equal nodes a random one is taken, by ``rng``, instead of the first row.
        note: text for people about terms of the score that currently apply in addition to the usual ones; "" for none.
        version: changes when new scores are not comparable with earlier ones (tables were learned again).
    """

    random_ties: bool
    note: str
    version: int
    rng: np.random.Generator

    def observe(self, shape: Shape) -> None:
        """Count a request of the shape that has just arrived."""
        ...

    def score(self, compiled: CompiledShape, rows: Rows) -> Scored:
        """Return the score of each node in ``rows``, and the device to use there if the shape is a slice of one device.

        Larger scores are better; the score is minus infinity where the shape does not fit.
        """
        ...

    def device(self, compiled: CompiledShape, row: int, device: int) -> int:
        """Return the device to use on the chosen row: usually ``device``, but a policy may choose another one.

        Args:
            device: device that ``score`` returned for the row.
        """
        ...
