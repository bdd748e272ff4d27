"""Random failures of nodes for the simulation, drawn in advance from a seed.

Failures are a Poisson process over the whole cluster, independent of load. The length of an outage is exponentially
distributed. A node that is down does not fail again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from calabash.model.errors import CalabashError

PER_100_NODES_MAX = 10_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """Rate and length of failures. The unit of time is the mean lifetime of requests.

    Args:
        per_100_nodes: number of failures per 100 nodes in one mean lifetime.
        outage_lifetimes: mean length of an outage, in mean lifetimes.
    """

    per_100_nodes: float
    outage_lifetimes: float = 0.1

    def __post_init__(self) -> None:
        if not 0 <= self.per_100_nodes <= PER_100_NODES_MAX or not 0 < self.outage_lifetimes < 1e6:
            raise CalabashError(
                f"{self.per_100_nodes} failures per 100 nodes with outages of {self.outage_lifetimes} lifetimes"
                " is out of range",
                hint=f"0 to {PER_100_NODES_MAX:g} failures, outages above 0; for example 5 failures with outages of 0.1",
            )


@dataclass(frozen=True, slots=True, order=True)
class NodeChange:
    """Failure (``up`` is False) or recovery of a node at the time ``at``; ``row`` is the index of the node."""

    at: float
    row: int
    up: bool


def draw(failures: Failures | None, node_count: int, until: float, seed: int) -> list[NodeChange]:
    """Return the failures before ``until`` and the recoveries from them, in order of time.

    A recovery may be after ``until``. The result is empty without failures or nodes.
    """
    if failures is None or not failures.per_100_nodes or not node_count:
        return []
    rng = np.random.default_rng((seed, 0xFA11))  # separate random numbers: arrivals are the same without failures
    rate = failures.per_100_nodes * node_count / 100.0
    changes: list[NodeChange] = []
    down_until = np.zeros(node_count)
    now = float(rng.exponential(1 / rate))
    while now < until:
        row = int(rng.integers(node_count))
        if down_until[row] <= now:
            back = now + float(rng.exponential(failures.outage_lifetimes))
            down_until[row] = back
            changes += [NodeChange(now, row, up=False), NodeChange(back, row, up=True)]
        now += float(rng.exponential(1 / rate))
    return sorted(changes)
