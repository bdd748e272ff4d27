"""PromQL query of a metric in which every series counts once, however many exporters or jobs scrape its pool."""

from __future__ import annotations

from calabash.exporter.catalogue import MetricKind, MetricSpec


def once(spec: MetricSpec, selector: str = "", *, by: tuple[str, ...] = (), over: str = "") -> str:
    """Return the query of a metric with the labels of the catalogue only; for a histogram, of its buckets.

    Labels that Prometheus adds at the scrape, such as ``instance`` and ``job``, are dropped. If a pool has several
    exporters, several series then have equal labels. The highest of their values is used; their sum would count the
    pool twice.

    Args:
        spec: the metric.
        selector: matchers of labels, without braces.
        by: labels to keep; () keeps all labels of the catalogue.
        over: a function over time and its range, for example ``rate 5m``; "" for the newest value.
    """
    is_histogram = spec.kind is MetricKind.HISTOGRAM
    name = f"{spec.name}_bucket" if is_histogram else spec.name
    labels = (*spec.labels, "le") if is_histogram else spec.labels
    series = f"{name}{{{selector}}}" if selector else name
    if over:
        function, _, window = over.partition(" ")
        series = f"{function}({series}[{window}])"
    return f"max by ({', '.join(by or labels)}) ({series})"
