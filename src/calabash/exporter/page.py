"""Page that Prometheus scrapes: the state of the pool as metrics in Prometheus' text format."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator

import msgspec
import structlog

from calabash.adapters.exposition import Family, exposition
from calabash.exporter import catalogue, native
from calabash.exporter.dcgm import dcgm_families
from calabash.exporter.families import family
from calabash.exporter.hami import hami_families
from calabash.exporter.reading import PoolReading, Reader
from calabash.model.errors import CalabashError

FRESH_S = 1.0  # scrapes that come together share one reading

COMPATIBLE: dict[str, Callable[[PoolReading], Iterator[Family]]] = {"dcgm": dcgm_families, "hami": hami_families}

log = structlog.get_logger(__name__)


class MetricsPage:
    """Page of metrics. Safe for threads: one thread reads the pool, and the others wait for its result.

    Args:
        reader: reads the state of the pool.
        compatible: other exporters whose metric names are served in addition; keys of ``COMPATIBLE``.
        clock: returns monotonic seconds.
    """

    def __init__(
        self, reader: Reader, *, compatible: Collection[str] = (), clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._reader = reader
        self._compatible = tuple(compatible)
        self._clock = clock
        self._lock = threading.Lock()
        self._read_at_s = -FRESH_S
        self._text = b""

    def text(self) -> bytes:
        """Return the page, at most FRESH_S seconds old.

        If the pool cannot be read, the page has only the metric ``calabash_up`` with value 0.
        """
        with self._lock:
            if self._clock() - self._read_at_s >= FRESH_S:
                self._text = exposition(self._collect())
                self._read_at_s = self._clock()
            return self._text

    def _collect(self) -> Iterator[Family]:
        began_s = self._clock()
        try:
            reading = self._reader.read()
        except (CalabashError, msgspec.ValidationError) as error:
            log.warning("the pool cannot be read", error=str(error))
            yield family(catalogue.UP, [((), 0)])
            return
        yield family(catalogue.UP, [((), 1)])
        yield family(catalogue.READ_SECONDS, [((), self._clock() - began_s)])
        yield from native.families(reading)
        for name in self._compatible:
            yield from COMPATIBLE[name](reading)
