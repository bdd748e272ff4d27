"""A tenant's counter as far as it can be true: it never runs backwards, and in the long run not faster than the clock."""

from __future__ import annotations

from dataclasses import dataclass

MS = 1_000_000
BACKLOG_NS = 1_000 * MS  # what a page claims beyond what the clock allows counts later, up to this
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
