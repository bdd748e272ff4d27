"""Rate limits by the token-bucket algorithm: for one API token, all tokens of a user, or one address without a token.

At most KEYS_MAX buckets are kept, so memory is bounded. The least recently used bucket is dropped first; if its client
comes back, it gets a full bucket.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

KEYS_MAX = 10_000


class Buckets:
    """Token buckets by key.

    Args:
        per_second: sustained rate of requests, at which a bucket fills.
        at_once: number of requests that may arrive at once: the capacity of a bucket.
        clock: returns monotonic seconds.
    """

    def __init__(self, per_second: float, at_once: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_second = per_second
        self._at_once = at_once
        self._clock = clock
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()  # key -> level and its time

    def take(self, key: str) -> float:
        """Take one request from the bucket and return 0; if it is empty, return the seconds until one is available."""
        left, now_s = self._now(key)
        wait_s = max(0.0, (1.0 - left) / self._per_second)
        self._put(key, left if wait_s else left - 1.0, now_s)
        return wait_s

    def left(self, key: str) -> float:
        """Return the number of requests that are left in the bucket, without taking one."""
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
