"""Demand: number of requests per shape, from which policies learn the workload.

A demand is read from a file, or counted from the requests that have arrived so far.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from calabash.sched.cluster.shape import Shape

TYPICAL_SHARE = 0.95
TYPICAL_MAX = 128  # learning takes time in proportion


@dataclass(frozen=True, slots=True)
class Demand:
    """Number of requests per shape."""

    counts: Mapping[Shape, int] = field(default_factory=dict)

    @classmethod
    def from_shapes(cls, shapes: Iterable[Shape]) -> Demand:
        """Return the demand of some requests, one shape each."""
        counts: dict[Shape, int] = {}
        for shape in shapes:
            counts[shape] = counts.get(shape, 0) + 1
        return cls(counts)

    @property
    def gpu_total_milli(self) -> int:
        """Return the device compute of all requests."""
        return sum(shape.gpu_total_milli * count for shape, count in self.counts.items())

    def typical(self) -> list[tuple[tuple[int, int, int, frozenset[str]], float]]:
        """Return the target workload of the FGD policy: the most frequent kinds of requests with their frequencies.

        A kind is (cpu_milli, gpu_milli, gpu_count, models). CPU-only requests are included, and host memory is ignored.
        The kinds cover TYPICAL_SHARE of all requests, but are at most TYPICAL_MAX; their frequencies sum to 1.
        """
        merged: dict[tuple[int, int, int, frozenset[str]], int] = {}
        for shape, count in self.counts.items():
            key = (shape.cpu_milli, shape.gpu_milli, shape.gpu_count, shape.models)
            merged[key] = merged.get(key, 0) + count
        total = sum(merged.values())
        order = sorted(merged.items(), key=lambda item: (item[1], item[0][:3], sorted(item[0][3])), reverse=True)
        found: list[tuple[tuple[int, int, int, frozenset[str]], int]] = []
        covered = 0
        for key, count in order:
            if covered >= TYPICAL_SHARE * total or len(found) == TYPICAL_MAX:
                break
            found.append((key, count))
            covered += count
        return [(key, count / covered) for key, count in found]

    def distance(self, other: Demand) -> float:
        """Return the total variation distance to another demand, from 0 (same mix) to 1 (no shape in common).

        Shapes are weighted by their number of requests and their device compute.
        """
        mine, theirs = self._shares(), other._shares()
        return sum(abs(mine.get(s, 0.0) - theirs.get(s, 0.0)) for s in mine.keys() | theirs.keys()) / 2

    def _shares(self) -> dict[Shape, float]:
        weights = {s: (s.gpu_total_milli + 100) * n for s, n in self.counts.items()}
        total = sum(weights.values())
        return {s: w / total for s, w in weights.items()} if total else {}
