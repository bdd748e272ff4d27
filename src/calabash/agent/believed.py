"""A tenant's counter as far as it can be true: it never runs backwards, and in the long run not faster than the clock;
and how long its kernels can be, if the counter is true."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

MS = 1_000_000
BACKLOG_NS = 1_000 * MS  # what a page says beyond what the clock allows counts later, up to this
CREDIT_NS = 20 * MS


@dataclass(slots=True)
class Believed:
    """A cumulative counter of GPU time that lies in a tenant's page; counts from its first look."""

    value_ns: int = 0
    _highest_ns: int = -1
    _backlog_ns: int = 0
    _room_ns: int = 0
    _read_ns: int = 0

    def read(self, raw_ns: int, now_ns: int, *, burst_ns: int) -> int:
        """The value after one more look; ``burst_ns``: how much work may be told ahead of its time."""
        if self._highest_ns < 0:
            self._highest_ns, self._read_ns, self._room_ns = raw_ns, now_ns, burst_ns
        grown = max(0, raw_ns - self._highest_ns)
        self._highest_ns += grown
        self._backlog_ns = min(self._backlog_ns + grown, BACKLOG_NS)
        self._room_ns = min(self._room_ns, burst_ns) + max(0, now_ns - self._read_ns)
        self._read_ns = now_ns
        step = min(self._backlog_ns, self._room_ns)
        self._backlog_ns -= step
        self._room_ns -= step
        self.value_ns += step
        return self.value_ns


STEPS_WINDOW_NS = 250 * MS
STEPS_WINDOWS = 4


@dataclass(slots=True)
class LargestStep:
    """The largest step of a counter of GPU time between two looks, of late.

    A kernel is charged as a whole, so a program whose counter grows in small steps has no long kernels, whatever it says.
    """

    _last_ns: int = -1
    _since_ns: int = 0
    _largest: deque[int] = field(default_factory=lambda: deque(maxlen=STEPS_WINDOWS))  # of windows with any step

    def read(self, value_ns: int, now_ns: int) -> int:
        """The largest step after one more look."""
        step_ns = value_ns - self._last_ns if self._last_ns >= 0 else 0
        self._last_ns = value_ns
        if step_ns > 0:
            if not self._largest or now_ns - self._since_ns > STEPS_WINDOW_NS:
                self._since_ns = now_ns
                self._largest.append(0)
            self._largest[-1] = max(self._largest[-1], step_ns)
        return max(self._largest, default=0)

    def kernel_ns(self, said_ns: int, value_ns: int, now_ns: int) -> int:
        """How long its long kernels are believed to be after one more look."""
        return min(said_ns, self.read(value_ns, now_ns) * 3 // 2)
