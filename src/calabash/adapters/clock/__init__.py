"""Time: the system's clocks, and a virtual one that tests move by hand.

What lives here: the Clock protocol, ``SystemClock``, ``SteadyClock``, ``VirtualClock``. The pure core gets time as an
argument; only daemons hold a Clock.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Two clocks: the calendar for people, the monotonic one for durations and for the pages shared with C."""

    def now_s(self) -> float:
        """Seconds since 1970, UTC."""
        ...

    def monotonic_ns(self) -> int:
        """CLOCK_MONOTONIC in nanoseconds, the same for all processes of the host."""
        ...


class SystemClock:
    """The clocks of the host."""

    def now_s(self) -> float:
        return time.time()

    def monotonic_ns(self) -> int:
        return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


class SteadyClock:
    """The calendar of another clock when this one was made, counted on by that clock's monotonic time.

    For durations between moments that are kept as calendar time: they stay right when somebody sets the calendar. The
    calendar of this clock is then wrong by as much as was set, until it is made anew.

    Args:
        start: ``start`` of an earlier one in the same boot of the machine, which this one goes on from; None: begin now.
    """

    def __init__(self, clock: Clock, start: tuple[float, int] | None = None) -> None:
        self._clock = clock
        self.start = start or (clock.now_s(), clock.monotonic_ns())

    def now_s(self) -> float:
        start_s, start_ns = self.start
        return start_s + (self._clock.monotonic_ns() - start_ns) / 1e9

    def ahead_s(self) -> float:
        """Return how many seconds the calendar has been set forward since the start, negative for back."""
        return self._clock.now_s() - self.now_s()

    def monotonic_ns(self) -> int:
        return self._clock.monotonic_ns()


class VirtualClock:
    """Stands still until it is told to advance."""

    def __init__(self, *, now_s: float = 1_700_000_000.0) -> None:
        self._start_s = now_s
        self._elapsed_ns = 0

    def now_s(self) -> float:
        return self._start_s + self._elapsed_ns / 1e9

    def monotonic_ns(self) -> int:
        return self._elapsed_ns

    def advance(self, seconds: float) -> None:
        """Move both clocks forward."""
        self._elapsed_ns += int(seconds * 1e9)

    def set_calendar(self, seconds: float) -> None:
        """Somebody sets the calendar forward, or back; the monotonic clock goes on."""
        self._start_s += seconds
