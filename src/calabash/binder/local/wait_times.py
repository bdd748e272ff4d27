"""Waiting times of requests until their answer, by queue and outcome, as distributions."""

from __future__ import annotations

import threading
from enum import StrEnum

from calabash.model.distribution import Distribution

BOUNDS_S = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0, 86_400.0)
KEYS_MAX = 8192  # pairs of queue and outcome; the oldest is dropped, and starts at 0 again


class WaitOutcome(StrEnum):
    """Outcome of a wait."""

    GRANTED = "granted"
    NOT_GRANTED = "not_granted"  # withdrawn, timed out, or refused after it had waited


class WaitTimes:
    """Distributions of the waiting times since the pool was started. Safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[tuple[str, WaitOutcome], Distribution] = {}

    def add(self, queue: str, outcome: WaitOutcome, waited_s: float) -> None:
        """Count the time in seconds that one request has waited in a queue."""
        waited_s = max(0.0, waited_s)
        with self._lock:
            self._found.setdefault((queue, outcome), Distribution(BOUNDS_S)).add(waited_s)
            if len(self._found) > KEYS_MAX:
                del self._found[next(iter(self._found))]

    def all(self) -> list[tuple[str, WaitOutcome, Distribution]]:
        """Return the distribution, in seconds, of every pair of queue and outcome for which a wait was counted."""
        with self._lock:
            return [(queue, outcome, found.copy()) for (queue, outcome), found in self._found.items()]
