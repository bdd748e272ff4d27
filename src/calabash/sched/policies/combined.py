"""Weighted combination of policies. The scores of each policy are scaled to 0..1, so that the weights are comparable.

The first policy chooses the device. Scores of quantised policies, 0 to 100, are divided by 100. Potentials, which are a few
cards at most, are scaled by a logistic function, so that no policy can outweigh all others.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from calabash.model.errors import CalabashError
from calabash.sched.cluster.arrays import Cluster
from calabash.sched.cluster.columns import Floats, Rows
from calabash.sched.cluster.fit import CompiledShape
from calabash.sched.cluster.scoring import PlacementPolicy, Scored, Scorer
from calabash.sched.cluster.shape import Shape
from calabash.sched.policies.base import ScorerBase

_HUNDRED = frozenset({"bestfit", "dotproduct", "packing", "clustering", "fgd"})


@dataclass(frozen=True, slots=True, kw_only=True)
class CombinedPolicy:
    """Weighted combination of policies.

    Args:
        parts: the combined policies, as pairs of policy and weight; the first policy chooses the device.
    """

    parts: tuple[tuple[PlacementPolicy, float], ...]

    def __post_init__(self) -> None:
        if not self.parts or not all(0 < weight < np.inf for _, weight in self.parts):
            raise CalabashError(
                "a combination of policies needs at least one policy, and positive weights",
                hint="write for example pgb:1+topology:0.2",
            )

    @property
    def name(self) -> str:
        """Return the name, such as ``pgb:1+topology:0.2``."""
        return "+".join(f"{policy.name}:{weight:g}" for policy, weight in self.parts)

    def bind(self, cluster: Cluster) -> Scorer:
        return _Combined(cluster, [(p.name, p.bind(cluster), w) for p, w in self.parts])


class _Combined(ScorerBase):
    def __init__(self, cluster: Cluster, parts: list[tuple[str, Scorer, float]]) -> None:
        super().__init__(cluster)
        self._parts = parts
        self._gather()

    def observe(self, shape: Shape) -> None:
        for _, scorer, _ in self._parts:
            scorer.observe(shape)
        self._gather()

    def _gather(self) -> None:
        self.version = sum(scorer.version for _, scorer, _ in self._parts)
        self.note = "; ".join(scorer.note for _, scorer, _ in self._parts if scorer.note)

    def score(self, compiled: CompiledShape, rows: Rows) -> Scored:
        total: Floats = np.zeros(len(rows))
        chosen = None
        for index, (name, scorer, weight) in enumerate(self._parts):
            scores, devices = scorer.score(compiled, rows)
            fits = np.isfinite(scores)
            bounded = np.where(fits, scores, 0.0)
            scaled = bounded / 100.0 if name in _HUNDRED else 1.0 / (1.0 + np.exp(-bounded))
            total = np.where(fits, total + weight * scaled, -np.inf)
            if index == 0:
                chosen = devices
        return total, chosen
