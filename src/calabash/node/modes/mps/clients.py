"""Who the clients of a card's service are and were a moment ago: after a fault all may be gone before anybody looks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from calabash.model.request import AllocationId

LET_IN_MAX = 1024
RECENT_S = 2.0  # several looks, on a machine that is busy


class Clients:
    """Clients by pid. Not safe for threads by itself."""

    def __init__(self, allocation_of: Callable[[int], AllocationId | None]) -> None:
        self._allocation_of = allocation_of
        self._seen: dict[int, tuple[AllocationId | None, float]] = {}
        self._let_in: dict[int, AllocationId] = {}

    def let_in(self, pid: int, allocation: AllocationId) -> None:
        """It came through the door."""
        self._let_in = dict(list(self._let_in.items())[-LET_IN_MAX:]) | {pid: allocation}
        self._seen[pid] = (allocation, time.monotonic())

    def seen(self, pids: Iterable[int]) -> None:
        """These are there now."""
        now = time.monotonic()
        self._forget(now)
        for pid in pids:
            known = self._seen.get(pid)
            whose = known[0] if known is not None and known[0] is not None else self._allocation_of(pid)
            self._seen[pid] = (whose, now)

    def clear(self) -> None:
        """Nobody is a client any more."""
        self._seen.clear()

    def whose(self, pid: int) -> AllocationId | None:
        """The allocation of a client, also of one that has gone."""
        known = self._seen.get(pid)
        return (known[0] if known is not None else None) or self._let_in.get(pid)

    def by_allocation(self) -> dict[AllocationId, list[int]]:
        """Those that are there or were a moment ago."""
        self._forget(time.monotonic())
        found: dict[AllocationId, list[int]] = {}
        for pid, (whose, _) in self._seen.items():
            if whose is not None:
                found.setdefault(whose, []).append(pid)
        return found

    def _forget(self, now: float) -> None:
        self._seen = {pid: entry for pid, entry in self._seen.items() if now - entry[1] < RECENT_S}
