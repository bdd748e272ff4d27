"""Clock for tests."""

from __future__ import annotations


class VirtualClock:
    """Clock for tests that stands still until it is advanced."""

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
        """Move the calendar forward, or back for negative seconds; the monotonic clock is unchanged."""
        self._start_s += seconds
