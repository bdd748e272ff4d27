"""Past use of queues, in which use counts less the older it is, and the half-life as a setting.

The past use of a queue is the integral of what it used above its deserved amount, in device-seconds. What is ``half_life_s``
old counts half. A queue whose largest part of the capacity is one of CPU or host memory is charged as many devices as are
the same part of all devices. Past use of a queue that always uses n devices approaches n times the half-life divided by
ln 2 (1.44 half-lives).

Shares do not follow past use at once, because each change of the shares is a change of the order of the queues: they take
the past use that was current at the begin of a *period*, which is ``half_life_s`` / 1024 and at least ``PERIOD_MIN_S``. In
one period past use decays by 0.07 percent. So time alone changes decisions once in a period and not in between.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from calabash.model.errors import CalabashError
from calabash.model.units import exact_duration, parse_duration_s
from calabash.sched.amounts import Amount
from calabash.sched.queues.use import QueueUse

PERIODS = 1024
PERIOD_MIN_S = 1.0
HALF_LIFE_MIN_S = 60.0
HALF_LIFE_MAX_S = 366 * 86_400.0
MILLI = 1000.0


def parse_half_life_s(text: str) -> float:
    """Parse a half-life like ``7d`` and return seconds; ``0`` or empty text switches past use off.

    Raises:
        CalabashError: the text is no duration, or it is not between HALF_LIFE_MIN_S and HALF_LIFE_MAX_S.
    """
    try:
        half_life_s = parse_duration_s(text) if text.strip() else 0.0
    except CalabashError as error:
        raise CalabashError(f"half_life: {error.message}", hint="write a duration such as 12h or 7d, or 0") from None
    if half_life_s and not HALF_LIFE_MIN_S <= half_life_s <= HALF_LIFE_MAX_S:
        raise CalabashError(
            f"half_life {text.strip()[:32]} is out of range: {exact_duration(HALF_LIFE_MIN_S)} to"
            f" {exact_duration(HALF_LIFE_MAX_S)}",
            hint="write a duration in this range, such as 12h or 7d, or 0, with which past use does not count",
        )
    return half_life_s


class PastUse:
    """Past use by queue number.

    Args:
        count: number of queues, with the root. half_life_s: half-life; 0: nothing is counted.

    Attributes:
        counted: past use by queue number that shares take account of. version: changes with ``counted``.
    """

    def __init__(self, count: int, half_life_s: float = 0.0) -> None:
        self.half_life_s = half_life_s
        self.period_s = max(PERIOD_MIN_S, half_life_s / PERIODS)
        self.counted: Sequence[float] = (0.0,) * count
        self._past = [0.0] * count
        self.version = 0
        self._at_s = 0.0
        self._period = -1

    def resize(self, count: int) -> None:
        """Forget all past use and set the number of queues."""
        self._past = [0.0] * count
        self.count()

    def at(self, number: int) -> float:
        """Return the past use of a queue in device-seconds."""
        return self._past[number]

    def set(self, number: int, device_s: float) -> None:
        """Set the past use of a queue, if there is a half-life. Shares take account of it after ``count``."""
        if self.half_life_s > 0:
            self._past[number] = device_s

    def count(self) -> None:
        """Let shares take account of the present values."""
        if self.counted != (now := tuple(self._past)):
            self.counted = now
            self.version += 1

    def start_at(self, at_s: float) -> None:
        """Set the time from which ``advance`` counts; it is 0 at first."""
        self._at_s, self._period = at_s, -1

    def next_period_s(self) -> float:
        """Return the time at which ``counted`` changes next; infinite if it stays as it is."""
        if self.half_life_s <= 0:
            return math.inf
        return (self._period + 1) * self.period_s

    def advance(self, now_s: float, use: QueueUse, deserved: Sequence[Sequence[float]], capacity: Amount) -> bool:
        """Count the use since the last call, which was constant. Return True if ``counted`` has changed."""
        if self.half_life_s <= 0:
            return False
        elapsed_s = now_s - self._at_s
        self._at_s = max(now_s, self._at_s)
        if elapsed_s > 0 and any(capacity):
            keep = 0.5 ** (elapsed_s / self.half_life_s)
            devices = capacity.gpu_milli / MILLI or 1.0
            gained_s = devices * (1.0 - keep) * self.half_life_s / math.log(2.0)
            parts = [1.0 / c if c > 0 else 0.0 for c in capacity]
            past = self._past
            for i in range(1, len(past)):
                used = use.used_at(i)
                if any(used):
                    above = max((u - d) * p for u, d, p in zip(used, deserved[i], parts, strict=True))
                    past[i] = past[i] * keep + max(0.0, above) * gained_s
                elif past[i]:
                    past[i] *= keep
        period = math.floor(self._at_s / self.period_s)
        if period == self._period:
            return False
        self._period = period
        before = self.version
        self.count()
        return before != self.version
