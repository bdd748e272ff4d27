"""What is asked for, as counts per shape: the only thing that learned policies know of the workload.

A demand comes from a file, or from arrivals as they come; it never looks ahead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from calabash.sched.cluster.shape import Shape

TYPICAL_SHARE = 0.95
TYPICAL_MAX = 128  # learning takes time in proportion


@dataclass(frozen=True, slots=True)
class Demand:
    """Counts of requests per shape; shapes with different memory stay different."""

    counts: Mapping[Shape, int] = field(default_factory=dict)

    @classmethod
    def of(cls, shapes: Iterable[Shape]) -> Demand:
        """Count them."""
        counts: dict[Shape, int] = {}
        for shape in shapes:
            counts[shape] = counts.get(shape, 0) + 1
        return cls(counts)

    @property
    def gpu_total_milli(self) -> int:
        """Device compute over all requests."""
        return sum(shape.gpu_total_milli * count for shape, count in self.counts.items())

    def typical(self) -> list[tuple[tuple[int, int, int, frozenset[str]], float]]:
        """The target workload of FGD: the most popular (cpu_milli, gpu_milli, gpu_count, models) until they are 95 % of
        all requests, at most ``TYPICAL_MAX``, with frequencies that add up to one. Host memory is ignored, CPU-only
        requests are included."""
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
        """Total variation between two demands by device compute and count, 0 (same mix) to 1 (nothing in common)."""
        mine, theirs = self._shares(), other._shares()
        return sum(abs(mine.get(s, 0.0) - theirs.get(s, 0.0)) for s in mine.keys() | theirs.keys()) / 2

    def _shares(self) -> dict[Shape, float]:
        weights = {s: (s.gpu_total_milli + 100) * n for s, n in self.counts.items()}
        total = sum(weights.values())
        return {s: w / total for s, w in weights.items()} if total else {}
