"""Prometheus metrics of the programs of a cluster: counters, histograms and gauges, and their HTTP server."""

from __future__ import annotations

import asyncio
import os
import resource
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path

import calabash
from calabash.adapters.exposition import CONTENT_TYPE, Family, Histogram, exposition
from calabash.adapters.kube.http.counts import KUBE_COUNTS
from calabash.api import part_metrics as m
from calabash.api.part_metrics import ClusterPart, PartMetric, metrics_of
from calabash.model.distribution import Distribution
from calabash.model.errors import CalabashError
from calabash.transport.http1 import Bounds, HttpQuestion, HttpReply
from calabash.transport.small_server import SmallServer

PATH = "/metrics"
READY_PATH = "/readyz"
BOUNDS = Bounds(
    body_bytes=0, connections=32, per_peer=8, idle_s=120.0
)  # Prometheus keeps its connection between scrapes

Labels = tuple[str, ...]
Sample = tuple[PartMetric, Labels, float]
Gather = Callable[[], Iterable[Sample]]


@dataclass(slots=True)
class _Series:
    figures: dict[Labels, float] = field(default_factory=dict)
    distributions: dict[Labels, Distribution] = field(default_factory=dict)


class Telemetry:
    """The Prometheus metrics of one program. Thread-safe.

    Args:
        part: the program; it serves the metrics that ``part_metrics`` lists for it, and no others.
    """

    def __init__(self, part: ClusterPart) -> None:
        self._part = part
        self._lock = threading.Lock()
        self._series: dict[PartMetric, _Series] = {metric: _Series() for metric in metrics_of(part)}
        for metric, series in self._series.items():
            if metric.labels:
                continue
            if metric.kind == "counter":
                series.figures[()] = 0
            elif metric.kind == "histogram":
                series.distributions[()] = Distribution(metric.buckets)

    def count(self, metric: PartMetric, *labels: str, by: float = 1) -> None:
        """Add ``by`` to the counter with these label values."""
        with self._lock:
            figures = self._series[metric].figures
            figures[labels] = figures.get(labels, 0) + by

    def observe(self, metric: PartMetric, value: float, *labels: str) -> None:
        """Add a value to the histogram with these label values."""
        with self._lock:
            distributions = self._series[metric].distributions
            found = distributions.get(labels)
            if found is None:
                found = distributions[labels] = Distribution(metric.buckets)
            found.add(value)

    def page(self, gather: Gather = tuple) -> bytes:
        """Return all metrics in Prometheus' text format.

        Args:
            gather: returns metrics whose values are read at each scrape instead of being counted.
        """
        found: dict[PartMetric, dict[Labels, float]] = {}
        for metric, labels, figure in (*_common(self._part), *gather()):
            found.setdefault(metric, {})[labels] = figure
        with self._lock:
            families = [_family(metric, series, found.pop(metric, {})) for metric, series in self._series.items()]
        if found:
            raise KeyError(f"{self._part} does not serve {', '.join(metric.name for metric in found)}")
        return exposition(families)

    def reply(self, question: HttpQuestion, gather: Gather = tuple) -> HttpReply:
        """Answer a request for ``/metrics`` with all metrics, and any other request with an error."""
        if question.path != PATH:
            return HttpReply(status=HTTPStatus.NOT_FOUND)
        if question.method != "GET":
            return HttpReply(status=HTTPStatus.METHOD_NOT_ALLOWED)
        return HttpReply(body=self.page(gather), content_type=CONTENT_TYPE)


@contextmanager
def serving(server: SmallServer, port: int) -> Iterator[tuple[str, int]]:
    """Start a metrics server, yield its host and port, and stop it at the end.

    Raises:
        CalabashError: the port cannot be used.
    """
    try:
        server.start()
    except OSError as error:
        raise CalabashError(
            f"metrics cannot be served at port {port}: {error.strerror}", hint="choose another --metrics-port"
        ) from error
    try:
        yield server.address
    finally:
        server.stop()


def metrics_server(
    figures: Telemetry, gather: Gather, *, host: str, port: int, fault: Callable[[], str] | None = None
) -> SmallServer:
    """Return an HTTP server of ``/metrics`` and of the kubelet's probe; the caller starts and stops it.

    Args:
        figures: the metrics.
        gather: see ``Telemetry.page``.
        host, port: address of the server; port 0 for any free port.
        fault: returns why ``/readyz`` fails; "" if it succeeds. None: ``/readyz`` is not served.
    """

    async def answer(question: HttpQuestion) -> HttpReply:
        if fault is None or question.path != READY_PATH:
            return await asyncio.to_thread(figures.reply, question, gather)
        if question.method != "GET":
            return HttpReply(status=HTTPStatus.METHOD_NOT_ALLOWED)
        said = fault()
        status = HTTPStatus.SERVICE_UNAVAILABLE if said else HTTPStatus.OK
        return HttpReply(status=status, body=(said or "ok").encode(), content_type="text/plain")

    return SmallServer(answer, (host, port), name="metrics", bounds=BOUNDS)


def _family(metric: PartMetric, series: _Series, gathered: dict[Labels, float]) -> Family:
    head = Family(name=metric.name, help=metric.help, labels=metric.labels, kind=metric.kind)
    head.rows += sorted((series.figures | gathered).items())
    head.histograms += [
        Histogram(labels=labels, bounds=one.bounds, counts=tuple(one.counts), total=one.total)
        for labels, one in sorted(series.distributions.items(), key=lambda item: item[0])
    ]
    return head


def _common(part: ClusterPart) -> Iterable[Sample]:
    """Yield the metrics that all programs have: version, calls of the API server, and use of the process."""
    yield m.BUILD_INFO, (part.value, calabash.__version__), 1
    for (method, status), count in KUBE_COUNTS.requests().items():
        yield m.KUBE_REQUESTS, (method, str(status)), count
    for metric, counts in ((m.KUBE_LISTS, KUBE_COUNTS.lists()), (m.KUBE_WATCHES, KUBE_COUNTS.watches())):
        for plural, count in counts.items():
            yield metric, (plural,), count
    for plural, silent_s in KUBE_COUNTS.silent_s().items():
        yield m.KUBE_SILENT, (plural,), silent_s
    used = resource.getrusage(resource.RUSAGE_SELF)
    yield m.PROCESS_CPU, (), used.ru_utime + used.ru_stime
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    yield m.PROCESS_MEMORY, (), pages * os.sysconf("SC_PAGE_SIZE")
    yield m.PROCESS_FDS, (), len(os.listdir("/proc/self/fd"))
    yield m.PROCESS_FDS_MAX, (), resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    lived_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    yield m.PROCESS_START, (), time.time() - lived_s
