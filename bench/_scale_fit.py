"""Straight lines fitted through measurements, with their largest deviation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """``fixed + each * n``. ``off_percent`` is the largest deviation of a point from the line, in percent."""

    fixed: float
    each: float
    off_percent: float

    def at(self, number: float) -> float:
        return self.fixed + self.each * number

    def text(self, unit: str) -> str:
        return f"{self.fixed:.4g} + {self.each:.4g} n {unit}, residual {self.off_percent:.0f} %"


def line_through(points: Mapping[int, float]) -> Line:
    """Fit a line by least squares of relative errors, so that small numbers count as much as large ones.

    The line goes through the origin if there is one point only, or if its value at zero would be negative.
    """
    weights = {n: 1.0 / max(value, 1e-12) ** 2 for n, value in points.items()}
    total = sum(weights.values())
    mean_n = sum(w * n for n, w in weights.items()) / total
    mean_y = sum(w * points[n] for n, w in weights.items()) / total
    spread = sum(w * (n - mean_n) ** 2 for n, w in weights.items())
    each = sum(w * (n - mean_n) * (points[n] - mean_y) for n, w in weights.items()) / spread if spread else 0.0
    fixed = mean_y - each * mean_n
    if spread == 0.0 or fixed < 0.0 or each < 0.0:
        each = sum(w * n * points[n] for n, w in weights.items()) / sum(w * n * n for n, w in weights.items())
        fixed = 0.0
    off = max(abs(fixed + each * n - value) / max(abs(value), 1e-12) for n, value in points.items())
    return Line(fixed=fixed, each=each, off_percent=100 * off)
