"""Clamp tenant-reported counters to plausible values, and limit the kernel durations that are derived from them.

A clamped counter never decreases, and in the long run does not grow faster than the clock.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

MS = 1_000_000
BACKLOG_NS = 1_000 * MS  # growth faster than the clock that is stored and counted later
CREDIT_NS = 20 * MS
KERNEL_NS_MAX = 3_000 * MS  # longest accepted kernel; no time window is extended beyond it


@dataclass(slots=True)
class ClampedCounter:
    """Clamped view of a cumulative counter of GPU time in a tenant's page; it starts at 0 at the first reading."""

    value_ns: int = 0
    _highest_ns: int = -1
    _backlog_ns: int = 0
    _room_ns: int = 0
    _read_ns: int = 0

    def read(self, raw_ns: int, now_ns: int, *, burst_ns: int, inflight_ns: int = 0) -> int:
        """Return the clamped value of the counter after one more reading of the page.

        Args:
            raw_ns: the counter as the tenant has written it.
            burst_ns: largest amount of work that may be reported before the time for it has passed.
            inflight_ns: work in progress, which is reported when it is launched; at most KERNEL_NS_MAX is accepted.
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
DIVIDED_RATIO = 0.6  # fraction of the time charged for a kernel that runs beside another one, with some slack


@dataclass(slots=True)
class LargestStep:
    """Largest recent step of a counter of GPU time between two readings.

    A kernel is charged as a whole. So if a program's counter grows in small steps, the program has no long kernels,
    even if its page says so. An exception is a kernel that was never measured, which is charged in small steps while it
    runs: the growth of the counter without another launch is then one kernel.
    """

    _last_ns: int = -1
    _since_ns: int = 0
    _largest: deque[int] = field(default_factory=lambda: deque(maxlen=STEPS_WINDOWS))  # of windows with a step
    _launch_count: int | None = None
    _running_ns: int = 0
    _running_since_ns: int = 0

    def divided_ns(self, now_ns: int) -> int:
        """Return the charge so far, in ns, of a kernel that was never measured and shares the device; 0 if none runs.

        Such a kernel is recognized by its charge: about half of the time that has passed or less, because the kernels
        of other programs run at the same time.
        """
        is_part = self._running_ns <= DIVIDED_RATIO * (now_ns - self._running_since_ns)
        return self._running_ns if self._running_ns > CREDIT_NS and is_part else 0

    def read(self, value_ns: int, now_ns: int, launch_count: int | None = None) -> int:
        """Add a reading; return the largest step.

        Args:
            value_ns: value of the counter.
            launch_count: number of launches so far; None: unknown. While it does not change, all growth is one kernel.
        """
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
        """Add a reading; return the duration of the program's long kernels, in ns, as far as the counter confirms it.

        ``said_ns`` is the duration on the usage page, ``value_ns`` the clamped counter. ``launch_count``: see ``read``.
        """
        kernel_ns = min(said_ns, self.read(value_ns, now_ns, launch_count) * 3 // 2)
        return max(kernel_ns, self._running_ns) if self._running_ns > CREDIT_NS else kernel_ns
