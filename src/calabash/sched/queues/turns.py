"""Turns of owners: within a queue, who holds least goes first, and among equals who was served longest ago.

Theory of operation. One owner may have thousands of requests in a queue. If only the time of submission counted, every other
owner would wait for all of them. So the requests of a queue are ordered by priority, then by the turn of their owner, then
by submission. The turn is what the owner holds in that queue now, and the number of its last start: two owners that ask for
the same alternate, and an owner with long jobs does not lose its turn to one with many short ones.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass

from calabash.sched.queues.fairshare import Amount
from calabash.sched.queues.gang import Portion

Turn = tuple[int, int, int]


@dataclass(slots=True)
class _Owner:
    """What one owner has in one queue."""

    requests: int = 0
    gpu_milli: int = 0
    cpu_milli: int = 0
    last_start: int = 0
    start_before: int = 0


class OwnerTurns:
    """What every owner holds per queue; owners with nothing there are forgotten. ``version`` changes with any turn."""

    def __init__(self) -> None:
        self._owners: dict[tuple[str, str], _Owner] = {}
        self.version = 0
        self._starts = 0

    def join(self, queue: str, owner: str) -> None:
        """One more request of the owner waits."""
        self._owners.setdefault((queue, owner), _Owner()).requests += 1

    def leave(self, queue: str, owner: str) -> None:
        """One request fewer, whether it waited or ran."""
        entry = self._owners[queue, owner]
        entry.requests -= 1
        if not entry.requests:
            del self._owners[queue, owner]

    def start(self, queue: str, owner: str, amount: Amount) -> None:
        entry = self._owners[queue, owner]
        self._starts += 1
        self.version += 1
        entry.start_before, entry.last_start = entry.last_start, self._starts
        entry.gpu_milli += amount.gpu_milli
        entry.cpu_milli += amount.cpu_milli

    def stop(self, queue: str, owner: str, amount: Amount) -> None:
        entry = self._owners[queue, owner]
        self.version += 1
        entry.gpu_milli -= amount.gpu_milli
        entry.cpu_milli -= amount.cpu_milli

    def undo_start(self, queue: str, owner: str) -> None:
        """The last start came to nothing: the owner keeps the turn that it had."""
        entry = self._owners[queue, owner]
        entry.last_start = entry.start_before

    def turn(self, queue: str, owner: str) -> Turn:
        """Smaller goes first."""
        entry = self._owners.get((queue, owner))
        return (entry.gpu_milli, entry.cpu_milli, entry.last_start) if entry else (0, 0, 0)

    def place(self, portion: Portion) -> tuple[object, ...]:
        """Where a portion stands in its queue: priority, cores before surplus, turn of the owner, submission."""
        priority, surplus, *submitted = portion.rank
        return (priority, surplus, self.turn(portion.gang.queue, portion.gang.owner), submitted)


class QueueOrder:
    """The waiting portions of one queue, next first; turns move while the cycle starts something."""

    def __init__(self, portions: Iterable[Portion], turns: OwnerTurns) -> None:
        self._turns = turns
        self._of: dict[str, list[Portion]] = {}
        for portion in portions:
            self._of.setdefault(portion.gang.owner, []).append(portion)
        for waiting in self._of.values():
            waiting.sort(key=_rank, reverse=True)
        self._heap = [(turns.place(waiting[-1]), owner) for owner, waiting in self._of.items()]
        heapq.heapify(self._heap)
        self._true_at = turns.version

    def __bool__(self) -> bool:
        return bool(self._heap)

    def head(self) -> Portion:
        """The next one, still there."""
        while True:
            place, owner = self._heap[0]
            portion = self._of[owner][-1]
            if self._true_at == self._turns.version or len(self._heap) == 1:
                return portion
            now = self._turns.place(portion)
            if now == place:
                self._true_at = self._turns.version
                return portion
            heapq.heapreplace(self._heap, (now, owner))

    def pop(self) -> None:
        """Take away the head."""
        owner = self._heap[0][1]
        waiting = self._of[owner]
        waiting.pop()
        if waiting and len(self._heap) > 1:
            heapq.heapreplace(self._heap, (self._turns.place(waiting[-1]), owner))
        elif not waiting:
            heapq.heappop(self._heap)


def _rank(portion: Portion) -> tuple[object, ...]:
    return portion.rank
