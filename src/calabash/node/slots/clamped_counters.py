"""A tenant's counter as far as it can be true: it never runs backwards, and in the long run not faster than the clock;
and how long its kernels can be, if the counter is true."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

MS = 1_000_000
BACKLOG_NS = 1_000 * MS  # what a page says beyond what the clock allows counts later, up to this
CREDIT_NS = 20 * MS
KERNEL_NS_MAX = 3_000 * MS  # no kernel is believed to be longer, and no time window is made longer for one


@dataclass(slots=True)
class ClampedCounter:
    """A cumulative counter of GPU time that lies in a tenant's page; counts from its first look."""

    value_ns: int = 0
    _highest_ns: int = -1
    _backlog_ns: int = 0
    _room_ns: int = 0
    _read_ns: int = 0

    def read(self, raw_ns: int, now_ns: int, *, burst_ns: int, inflight_ns: int = 0) -> int:
        """Return the value after one more look.

        Args:
            burst_ns: how much work may be told ahead of its time.
            inflight_ns: work under way, which was told when it was launched; ``KERNEL_NS_MAX`` of it is believed.
        """
        if self._highest_ns < 0:
            self._highest_ns, self._read_ns, self._room_ns = raw_ns, now_ns, burst_ns
        grown = max(0, raw_ns - self._highest_ns)
        self._highest_ns += grown
        self._backlog_ns = min(self._backlog_ns + grown, BACKLOG_NS + min(inflight_ns, KERNEL_NS_MAX))
        self._room_ns = min(self._room_ns, burst_ns) + max(0, now_ns - self._read_ns)
        self._read_ns = now_ns
        step = min(self._backlog_ns, self._room_ns)
        self._backlog_ns -= step
        self._room_ns -= step
        self.value_ns += step
        return self.value_ns


STEPS_WINDOW_NS = 250 * MS
STEPS_WINDOWS = 4
DIVIDED_RATIO = 0.6  # of the time: what a kernel is charged that runs beside one other, with some slack


@dataclass(slots=True)
class LargestStep:
    """The largest step of a counter of GPU time between two looks, of late.

    A kernel is charged as a whole, so a program whose counter grows in small steps has no long kernels, whatever it says.
    One that was never measured is charged while it runs: what the counter grows by without another launch is one kernel.
    """

    _last_ns: int = -1
    _since_ns: int = 0
    _largest: deque[int] = field(default_factory=lambda: deque(maxlen=STEPS_WINDOWS))  # of windows with any step
    _launch_count: int | None = None
    _running_ns: int = 0
    _running_since_ns: int = 0

    def divided_ns(self, now_ns: int) -> int:
        """Return what a kernel that was never measured was charged so far while it runs beside kernels of others.

        It is charged its part of the time, hence half of the time at most. 0: no such kernel runs.
        """
        is_part = self._running_ns <= DIVIDED_RATIO * (now_ns - self._running_since_ns)
        return self._running_ns if self._running_ns > CREDIT_NS and is_part else 0

    def read(self, value_ns: int, now_ns: int, launch_count: int | None = None) -> int:
        """The largest step after one more look."""
        step_ns = value_ns - self._last_ns if self._last_ns >= 0 else 0
        self._last_ns = value_ns
        is_running = bool(launch_count) and launch_count == self._launch_count
        self._launch_count = launch_count
        self._running_ns = max(0, self._running_ns + step_ns) if is_running else 0
        if not is_running:
            self._running_since_ns = now_ns
        if step_ns > 0:
            if not self._largest or now_ns - self._since_ns > STEPS_WINDOW_NS:
                self._since_ns = now_ns
                self._largest.append(0)
            self._largest[-1] = max(self._largest[-1], step_ns, self._running_ns)
        return max(self._largest, default=0)

    def kernel_ns(self, said_ns: int, value_ns: int, now_ns: int, launch_count: int | None = None) -> int:
        """How long its long kernels are believed to be after one more look."""
        kernel_ns = min(said_ns, self.read(value_ns, now_ns, launch_count) * 3 // 2)
        return max(kernel_ns, self._running_ns) if self._running_ns > CREDIT_NS else kernel_ns
