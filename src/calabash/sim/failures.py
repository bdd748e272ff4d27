"""Failures of nodes, drawn ahead from a seed: when each goes down and when it is back.

Nodes fail independently of load, one after the other (a Poisson process over the whole cluster); an outage lasts an
exponential time. A node that is down already does not fail again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from calabash.model.errors import CalabashError

PER_100_NODES_MAX = 10_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """How often and how long, in mean lifetimes of requests.

    Args:
        per_100_nodes: failures of nodes per hundred nodes and mean lifetime.
        outage_lifetimes: mean length of an outage.
    """

    per_100_nodes: float
    outage_lifetimes: float = 0.1

    def __post_init__(self) -> None:
        if not 0 <= self.per_100_nodes <= PER_100_NODES_MAX or not 0 < self.outage_lifetimes < 1e6:
            raise CalabashError(
                f"{self.per_100_nodes} failures of {self.outage_lifetimes} lifetimes make no sense",
                hint="for example 5 failures per 100 nodes and lifetime, each of 0.1 lifetimes",
            )


@dataclass(frozen=True, slots=True, order=True)
class Change:
    """A node goes down or comes back."""

    at: float
    row: int
    up: bool


def draw(failures: Failures | None, node_count: int, until: float, seed: int) -> list[Change]:
    """All changes up to ``until``, in order of time; every node that went down also comes back, perhaps later."""
    if failures is None or not failures.per_100_nodes or not node_count:
        return []
    rng = np.random.default_rng((seed, 0xFA11))  # a stream of its own: the same arrivals with and without failures
    rate = failures.per_100_nodes * node_count / 100.0
    changes: list[Change] = []
    down_until = np.zeros(node_count)
    now = float(rng.exponential(1 / rate))
    while now < until:
        row = int(rng.integers(node_count))
        if down_until[row] <= now:
            back = now + float(rng.exponential(failures.outage_lifetimes))
            down_until[row] = back
            changes += [Change(now, row, up=False), Change(back, row, up=True)]
        now += float(rng.exponential(1 / rate))
    return sorted(changes)
