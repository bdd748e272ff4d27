"""Present and recent clients of an MPS service; after a fault the clients may exit before the next poll."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from calabash.model.request import AllocationId

ADMITTED_MAX = 1024
RECENT_S = 2.0  # several polls, also on a busy machine


class Clients:
    """Clients of one MPS service by PID. Not thread-safe."""

    def __init__(self, allocation_of: Callable[[int], AllocationId | None]) -> None:
        self._allocation_of = allocation_of
        self._seen: dict[int, tuple[AllocationId | None, float]] = {}
        self._admitted: dict[int, AllocationId] = {}

    def add_admitted(self, pid: int, allocation: AllocationId) -> None:
        """Record a process that was admitted."""
        self._admitted = dict(list(self._admitted.items())[-ADMITTED_MAX:]) | {pid: allocation}
        self._seen[pid] = (allocation, time.monotonic())

    def update(self, pids: Iterable[int]) -> None:
        """Record the clients that the server reports now."""
        now = time.monotonic()
        self._drop_old(now)
        for pid in pids:
            known = self._seen.get(pid)
            owner = known[0] if known is not None and known[0] is not None else self._allocation_of(pid)
            self._seen[pid] = (owner, now)

    def clear(self) -> None:
        """Remove all clients. Admitted PIDs stay known."""
        self._seen.clear()

    def owner_of(self, pid: int) -> AllocationId | None:
        """Return the allocation of a present or former client; None if it is not known."""
        known = self._seen.get(pid)
        return (known[0] if known is not None else None) or self._admitted.get(pid)

    def by_allocation(self) -> dict[AllocationId, list[int]]:
        """Return the PIDs of the clients seen in the last ``RECENT_S`` by allocation."""
        self._drop_old(time.monotonic())
        found: dict[AllocationId, list[int]] = {}
        for pid, (owner, _) in self._seen.items():
            if owner is not None:
                found.setdefault(owner, []).append(pid)
        return found

    def _drop_old(self, now: float) -> None:
        self._seen = {pid: entry for pid, entry in self._seen.items() if now - entry[1] < RECENT_S}
