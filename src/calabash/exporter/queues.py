"""Metrics of queues, such that ``sum()`` over queues counts every device and every request once.

For a parent queue, the pool reports the amounts of the queue and its child queues together. The series of a queue has
the amounts of that queue alone. The sum over any set of queues is therefore right, and the sum over a queue and its
descendants equals the amount that the pool reports.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

from calabash.adapters.exposition import Family, Histogram
from calabash.api.replies import QueueView
from calabash.exporter import catalogue as c
from calabash.exporter.families import family
from calabash.exporter.reading import PENDING, PoolReading

OUTCOMES = ("granted", "not_granted")
_DIGITS = 6


def queue_families(reading: PoolReading) -> Iterator[Family]:
    """Yield all metrics of queues."""
    queues = [((reading.status.node, q.name), q) for q in reading.queues]
    tree = _QueueTree(reading.queues)
    waits = _longest_waits(reading)
    deserved, allocated = tree.own(lambda q: q.guarantee), tree.own(lambda q: q.allocated)
    pending = tree.own(lambda q: q.pending)
    yield family(c.QUEUE_INFO, [((*key, q.parent, tree.root(q.name)), 1.0) for key, q in queues])
    yield family(c.QUEUE_DESERVED, [(key, deserved[q.name]) for key, q in queues])
    yield family(c.QUEUE_LIMIT, [(key, math.inf if q.limit is None else q.limit) for key, q in queues])
    yield family(c.QUEUE_ALLOCATED, [(key, allocated[q.name]) for key, q in queues])
    yield family(c.QUEUE_PENDING, [(key, pending[q.name]) for key, q in queues])
    yield family(c.QUEUE_FAIR_SHARE, [(key, q.fair_share or 0.0) for key, q in queues])
    yield family(c.QUEUE_PAST_USE, [(key, q.past_use_device_s) for key, q in queues])
    weights = [(key, q.weight if q.effective_weight is None else q.effective_weight) for key, q in queues]
    yield family(c.QUEUE_EFFECTIVE_WEIGHT, weights)
    yield family(c.QUEUE_LONGEST_WAIT, [(key, waits.get(q.name, 0.0)) for key, q in queues])
    waited = family(c.QUEUE_WAIT, [])
    waited.histograms = _wait_times(reading, tree.leaves())
    yield waited


def _wait_times(reading: PoolReading, leaves: Sequence[str]) -> list[Histogram]:
    """Return histograms of the waiting times, for all leaf queues and for other queues that had requests.

    A queue that had no request yet has a histogram with zeros. Prometheus computes rates from increases, and a series
    that begins with 1 has no increase.

    Args:
        reading: state of the pool.
        leaves: names of the queues without child queues.
    """
    bounds = tuple(reading.counters.wait_bounds_s)
    if not bounds:
        return []  # a pool that does not count
    known = {(one.queue, one.outcome): one for one in reading.counters.waits}
    asked = {name for name, _ in known}
    names = [q.name for q in reading.queues if q.name in asked.union(leaves)]
    found = []
    for key in ((name, outcome) for name in names for outcome in OUTCOMES):
        one = known.get(key)
        counts = tuple(one.counts) if one else (0,) * (len(bounds) + 1)
        found.append(
            Histogram(labels=(reading.status.node, *key), bounds=bounds, counts=counts, total=one.sum_s if one else 0.0)
        )
    return found


class _QueueTree:
    """Tree of the queues of a reading. A queue whose parent is missing in the reading is treated as a root."""

    def __init__(self, queues: Sequence[QueueView]) -> None:
        self._queues = {q.name: q for q in queues}
        self._children: dict[str, list[QueueView]] = defaultdict(list)
        for q in queues:
            if q.parent in self._queues:
                self._children[q.parent].append(q)

    def leaves(self) -> list[str]:
        """Return the names of the queues without child queues."""
        return [name for name in self._queues if name not in self._children]

    def root(self, name: str) -> str:
        """Return the topmost queue above a queue, or the queue itself."""
        for _ in range(len(self._queues)):
            parent = self._queues[name].parent
            if parent not in self._queues:
                break
            name = parent
        return name

    def own(self, amount: Callable[[QueueView], float]) -> dict[str, float]:
        """Return each queue's amount without those of its child queues.

        A guarantee is a setting, so the guarantees of child queues may add up to more than that of their parent. The
        parent's own amount is then 0.

        Args:
            amount: returns the amount of a queue that includes its child queues.
        """
        found: dict[str, float] = {}

        def total(q: QueueView) -> float:
            below = sum(total(child) for child in self._children.get(q.name, ()))
            found[q.name] = round(max(0.0, amount(q) - below), _DIGITS)
            return max(amount(q), below)

        for q in self._queues.values():
            if q.parent not in self._queues:
                total(q)
        return found


def _longest_waits(reading: PoolReading) -> dict[str, float]:
    """Return the age in seconds of the oldest waiting request of each queue, by the clock of the pool."""
    now_s = reading.status.started_at + reading.status.uptime_s
    found: dict[str, float] = {}
    for one in reading.allocations:
        if one.state == PENDING:
            found[one.queue] = max(found.get(one.queue, 0.0), now_s - one.created_at)
    return found
