"""Metric families of Prometheus: a metric of the catalogue with its series.

A row is one series: the values of its labels, and its value.
"""

from __future__ import annotations

from collections.abc import Sequence

from calabash.adapters.exposition import Family
from calabash.exporter.catalogue import MetricSpec

Row = tuple[tuple[str, ...], float]


def family(spec: MetricSpec, rows: Sequence[Row]) -> Family:
    """Return the family of a metric. Each row has the values of the labels, in the order of ``spec.labels``."""
    return Family(name=spec.name, help=spec.help, labels=spec.labels, kind=spec.kind.value, rows=list(rows))
