"""Families of series: a metric of the catalogue with its rows."""

from __future__ import annotations

from collections.abc import Sequence

from calabash.adapters.exposition import Family
from calabash.exporter.catalogue import MetricSpec

Row = tuple[tuple[str, ...], float]


def family(spec: MetricSpec, rows: Sequence[Row]) -> Family:
    """Return the family of a metric. Each row has a value for every label."""
    return Family(name=spec.name, help=spec.help, labels=spec.labels, kind=spec.kind.value, rows=list(rows))
