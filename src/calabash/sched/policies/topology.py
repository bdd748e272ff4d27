"""Topology policy: keep NVLink islands whole, and prefer the tightest island for requests of several devices.

Placements that leave whole islands untouched score higher than those that break one, and an exact fit into the rest of a broken
island scores highest. Combine it with a packing policy (``combined``) by a weight.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from calabash.sched.cluster.arrays import Cluster
from calabash.sched.cluster.columns import Floats, Ints, Rows
from calabash.sched.cluster.fit import CompiledShape
from calabash.sched.cluster.scoring import Scored, Scorer
from calabash.sched.cluster.shape import WHOLE_MILLI
from calabash.sched.policies.base import Maker, ScorerBase, masked


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyPolicy:
    """Topology policy: prefer placements that leave whole NVLink islands untouched."""

    name: str = "topology"

    def bind(self, cluster: Cluster) -> Scorer:
        return _TopologyScorer(cluster)


class _TopologyScorer(ScorerBase):
    def score(self, compiled: CompiledShape, rows: Rows) -> Scored:
        ok, fitting = self.fits(compiled, rows)
        shape, cluster = compiled.shape, self.cluster
        devices = self.fullest(rows, fitting) if fitting is not None and shape.fraction else None
        scores: Floats = np.zeros(len(rows))
        if shape.gpu_count and fitting is not None:
            islands: Ints = cluster.gpu_island[rows].astype(np.int64)
            idle = cluster.gpu_free_milli[rows] == WHOLE_MILLI
            for island in range(int(islands.max(initial=-1)) + 1):
                inside = islands == island
                size = inside.sum(axis=1)
                free = (inside & idle).sum(axis=1)
                whole = (free == size) & (size > 1)
                placer = (inside & fitting).sum(axis=1)
                # Breaking a whole island is worst; filling the rest of a broken one exactly is best.
                exact = (placer == shape.gpu_count) & ~whole
                scores = np.maximum(scores, np.where(placer >= shape.gpu_count, 2.0 + exact - whole, 0.0))
        return masked(scores, ok), devices


MAKERS: Mapping[str, Maker] = {"topology": lambda _demand, _seed: TopologyPolicy()}
