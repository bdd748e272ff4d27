"""Cache of verdicts of the nodes on shapes, shared by shapes that all nodes judge alike.

Theory of operation. A verdict depends on a requested amount only through comparisons with amounts of the nodes: free CPU, free
compute of devices, and so on. Shapes that differ only in amounts between which no node's amount lies compare alike on all
nodes: the same nodes refuse them for the same reasons, and the same changes help. Only the requested amounts in the texts
differ. So amounts are replaced by their ranks among the distinct amounts of the cluster, and a verdict is reused for all shapes
of equal ranks, with the amounts replaced. The first few shapes are judged without ranks, because computing the ranks costs as
much as a verdict.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from calabash.model.messages import Text
from calabash.sched.cluster.columns import Ints
from calabash.sched.cluster.placer import ClusterPlacer
from calabash.sched.cluster.shape import SHAPES_KEPT_MAX, Shape
from calabash.sched.explain.nodes import NodeVerdict, changes_for, judge, restated

# Number of shapes that are judged without ranks.
SINGLE_MAX = 4
Verdict = tuple[NodeVerdict, tuple[Text, ...]]
"""Verdict of the nodes on a shape, and changes that would let it fit."""


class Verdicts:
    """Verdicts on one cluster. The caller calls ``use_version`` first if the cluster may have changed."""

    def __init__(self, placer: ClusterPlacer) -> None:
        self._placer = placer
        self._known: dict[Shape, Verdict] = {}
        self._of_rank: dict[tuple[object, ...], Verdict] = {}
        self._ranks: _Ranks | None = None
        self._position = -1  # position of the change log when the ranks were computed
        self._version = -1

    def __len__(self) -> int:
        """Return the number of cached shapes."""
        return len(self._known)

    def use_version(self, version: int) -> None:
        """Drop the cached verdicts unless they are verdicts on this version of the cluster (``SchedulerState.version``)."""
        if version != self._version:
            self._version = version
            self._clear()

    def _clear(self) -> None:
        self._known.clear()
        self._of_rank.clear()
        self._ranks = None

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Keep the cached ranks valid within the context, which must undo all changes of the cluster that it makes."""
        current = self._position == self._placer.cluster.position
        yield
        if current:
            self._position = self._placer.cluster.position

    def verdict(self, shape: Shape) -> Verdict:
        """Return the verdict of the nodes on a shape, and changes that would let it fit."""
        found = self._known.get(shape)
        if found is None:
            if len(self._known) >= SHAPES_KEPT_MAX:
                self._clear()
            found = self._judged(shape) if len(self._known) < SINGLE_MAX else self._ranked(shape)
            self._known[shape] = found
        return found

    def _judged(self, shape: Shape) -> Verdict:
        verdict = judge(self._placer.compiled(shape))
        return verdict, () if verdict.fitting else changes_for(self._placer.cluster, shape)

    def _ranked(self, shape: Shape) -> Verdict:
        cluster = self._placer.cluster
        if self._ranks is None or self._position != cluster.position:
            self._of_rank.clear()
            self._ranks, self._position = _Ranks(self._placer), cluster.position
        key = self._ranks.key(shape)
        found = self._of_rank.get(key)
        if found is None:
            found = self._of_rank[key] = self._judged(shape)
            return found
        verdict, changes = found
        return restated(verdict, shape), changes


class _Ranks:
    """Values with which the amounts of a shape are compared: for each resource, the different amounts of the nodes.

    The values are in ascending order, so that an amount has a rank among them.
    """

    def __init__(self, placer: ClusterPlacer) -> None:
        cluster = placer.cluster
        self._cpu_free, self._cpu = _values(cluster.cpu_free_milli), _values(cluster.cpu_milli)
        self._memory_free, self._memory = _values(cluster.memory_free_mib), _values(cluster.memory_mib)
        self._gpu_free, self._gpu_free_mib = _values(cluster.gpu_free_milli), _values(cluster.gpu_free_mib)

    def key(self, shape: Shape) -> tuple[object, ...]:
        """Return a key under which shapes share their cached verdicts.

        Shapes of equal keys differ in requested amounts only, and all nodes judge them alike.
        """
        return (
            # 0 milli requests no compute, 1 milli the smallest amount, and a whole device is a request of another kind.
            (shape.whole, min(shape.gpu_milli, 2), bool(shape.gpu_memory_mib), bool(shape.cpu_milli), bool(shape.memory_mib)),
            bisect_left(self._cpu_free, shape.cpu_milli),
            bisect_left(self._cpu, shape.cpu_milli),
            bisect_left(self._memory_free, shape.memory_mib),
            bisect_left(self._memory, shape.memory_mib),
            bisect_left(self._gpu_free, shape.gpu_milli),
            bisect_left(self._gpu_free_mib, shape.gpu_memory_mib),
            (shape.gpu_count, shape.gpu_slices, shape.gpu_slices_max, shape.mig_profile, shape.mode),
            (shape.models, shape.card_memory_mib_min, shape.card_memory_mib_max),
            (shape.selector, shape.tolerations, shape.topology, shape.topology_required),
        )  # fmt: skip


def _values(column: Ints) -> list[int]:
    values: list[int] = np.unique(column).tolist()
    return values
