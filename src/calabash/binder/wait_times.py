"""How long requests waited for their answer, counted by queue and outcome in ranges of time."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

BOUNDS_S = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0, 86_400.0)
KEYS_MAX = 8192  # queues and outcomes; beyond it the oldest is dropped, and begins again at 0


class WaitOutcome(StrEnum):
    """How a wait ended."""

    GRANTED = "granted"
    NOT_GRANTED = "not_granted"  # withdrawn, timed out, or refused after it had waited


@dataclass(slots=True)
class WaitCounts:
    """``counts`` are those up to each of ``BOUNDS_S`` and above the one before, and last those above all."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_S) + 1))
    sum_s: float = 0.0


class WaitTimes:
    """Counts since the start. Safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[tuple[str, WaitOutcome], WaitCounts] = {}

    def add(self, queue: str, outcome: WaitOutcome, waited_s: float) -> None:
        """Count the wait of one request."""
        waited_s = max(0.0, waited_s)
        with self._lock:
            found = self._found.setdefault((queue, outcome), WaitCounts())
            found.counts[bisect_left(BOUNDS_S, waited_s)] += 1
            found.sum_s += waited_s
            if len(self._found) > KEYS_MAX:
                del self._found[next(iter(self._found))]

    def all(self) -> Iterator[tuple[str, WaitOutcome, WaitCounts]]:
        """Return the counts of every queue and outcome that there were."""
        with self._lock:
            return iter(
                [
                    (queue, outcome, WaitCounts(counts=list(found.counts), sum_s=found.sum_s))
                    for (queue, outcome), found in self._found.items()
                ]
            )
