"""Histogram: counts of values by range, for metrics."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


class Distribution:
    """Number of values in each range, and the sum of all values.

    Attributes:
        bounds: the upper bounds of the ranges in ascending order; a value that equals a bound is in its range.
        counts: the number of values in each range, and as the last entry the number of values above all bounds.
        total: the sum of all values.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def copy(self) -> Distribution:
        """Return a copy that later values do not change."""
        copied = Distribution(self.bounds)
        copied.counts, copied.total = self.counts.copy(), self.total
        return copied
