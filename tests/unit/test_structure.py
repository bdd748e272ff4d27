"""Length of the product's modules."""

from __future__ import annotations

import statistics
from pathlib import Path

import calabash

SOURCES = sorted(Path(calabash.__file__).parent.rglob("*.py"))
MODULE_LINES_MAX, MODULE_LINES_MEDIAN = 400, 120


def _lines(path: Path) -> int:
    return path.read_text().count("\n")


def test_no_module_is_longer_than_400_lines_and_the_median_is_at_most_120() -> None:
    assert [f"{path}: {_lines(path)}" for path in SOURCES if _lines(path) > MODULE_LINES_MAX] == []
    assert statistics.median(_lines(path) for path in SOURCES if path.name != "__init__.py") <= MODULE_LINES_MEDIAN
