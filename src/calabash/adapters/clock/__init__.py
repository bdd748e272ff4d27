"""Clocks: the system's, one that is steady against changes of the calendar, and a virtual one for tests.

The pure core gets time as an argument; only daemons hold a Clock.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Pair of clocks: calendar time, and monotonic time for durations and for memory pages that C code shares."""

    def now_s(self) -> float:
        """Return the seconds since 1970, UTC."""
        ...

    def monotonic_ns(self) -> int:
        """Return CLOCK_MONOTONIC in nanoseconds, which is the same for all processes of the host."""
        ...


class SystemClock:
    """The calendar and the monotonic clock of the host."""

    def now_s(self) -> float:
        return time.time()

    def monotonic_ns(self) -> int:
        return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


class SteadyClock:
    """Calendar that is read once from another clock and advanced by that clock's monotonic time.

    If the system's calendar is set, this clock does not follow. The difference of two times of this clock is
    therefore always the true duration. The clock differs from the system's until a new SteadyClock is created.

    Args:
        clock: the other clock.
        start: attribute ``start`` of an earlier SteadyClock of the same boot, to show the same time as that clock;
            None to read the calendar now.
    """

    def __init__(self, clock: Clock, start: tuple[float, int] | None = None) -> None:
        self._clock = clock
        self.start = start or (clock.now_s(), clock.monotonic_ns())

    def now_s(self) -> float:
        start_s, start_ns = self.start
        return start_s + (self._clock.monotonic_ns() - start_ns) / 1e9

    def ahead_s(self) -> float:
        """Return how many seconds the other clock is ahead because it was set forward; negative if it was set back."""
        return self._clock.now_s() - self.now_s()

    def monotonic_ns(self) -> int:
        return self._clock.monotonic_ns()
