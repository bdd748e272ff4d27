"""What one token, all tokens of one user, or one address that shows no token, may take: a bucket of requests each, refilled
with time.

Keys are forgotten when there are too many, those that have been quiet longest first: somebody with many addresses gets no
more than a fresh bucket each, and the memory is bounded.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

KEYS_MAX = 10_000


class Buckets:
    """Requests per second, and how many at once.

    Args:
        per_second: how fast a bucket fills.
        at_once: how much it holds.
    """

    def __init__(self, per_second: float, at_once: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_second = per_second
        self._at_once = at_once
        self._clock = clock
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()  # key -> what is left, when

    def take(self, key: str) -> float:
        """Take one; seconds until there will be one where there is none (then none is taken), else 0."""
        left, now_s = self._now(key)
        wait_s = max(0.0, (1.0 - left) / self._per_second)
        self._put(key, left if wait_s else left - 1.0, now_s)
        return wait_s

    def left(self, key: str) -> float:
        """What is left, without taking any."""
        return self._now(key)[0]

    def _now(self, key: str) -> tuple[float, float]:
        now_s = self._clock()
        left, at_s = self._levels.get(key, (self._at_once, now_s))
        return min(self._at_once, left + (now_s - at_s) * self._per_second), now_s

    def _put(self, key: str, left: float, now_s: float) -> None:
        self._levels[key] = (left, now_s)
        self._levels.move_to_end(key)
        while len(self._levels) > KEYS_MAX:
            self._levels.popitem(last=False)
