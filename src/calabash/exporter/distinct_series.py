"""PromQL query of a metric in which every series counts once, however many exporters or jobs scrape its pool."""

from __future__ import annotations

from calabash.exporter.catalogue import MetricKind, MetricSpec


def once(spec: MetricSpec, selector: str = "", *, by: tuple[str, ...] = (), over: str = "") -> str:
    """Return the query of a metric with the labels of the catalogue only.

    ``instance``, ``job`` and other labels of the scrape are dropped. Of several series with equal labels the highest figure
    counts, so that a second exporter whose reading is older does not add to the first. Of a histogram the buckets are meant.

    Args:
        selector: matchers of labels, without braces.
        by: labels to keep; those of the catalogue where none is named.
        over: a function over time and its range, for example ``rate 5m``; empty for the newest figure.
    """
    is_histogram = spec.kind is MetricKind.HISTOGRAM
    name = f"{spec.name}_bucket" if is_histogram else spec.name
    labels = (*spec.labels, "le") if is_histogram else spec.labels
    series = f"{name}{{{selector}}}" if selector else name
    if over:
        function, _, window = over.partition(" ")
        series = f"{function}({series}[{window}])"
    return f"max by ({', '.join(by or labels)}) ({series})"
