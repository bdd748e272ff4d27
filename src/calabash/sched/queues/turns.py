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
from operator import attrgetter

from calabash.sched.queues.fairshare import Amount
from calabash.sched.queues.gang import Portion

Turn = tuple[float, int, int]
_RANK = attrgetter("rank")
_UNKNOWN = -1


@dataclass(slots=True)
class _Owner:
    """What one owner has in one queue."""

    requests: int = 0
    gpu_milli: float = 0
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
        gang, rank = portion.gang, portion.rank
        return (rank[0], rank[1], self.turn(gang.queue, gang.owner), rank[2:])


class QueueOrder:
    """The waiting portions of one queue, next first; turns move while the cycle starts something.

    A start moves the turn of its owner back, so that places in the heap are bounds from before: the first one is compared with
    what it is now, and sorted in anew if it has moved. After an eviction (``renew``) all places are computed anew.
    """

    def __init__(self, portions: Iterable[Portion], turns: OwnerTurns) -> None:
        self._turns = turns
        of: dict[str, list[Portion]] = {}
        for portion in portions:
            of.setdefault(portion.gang.owner, []).append(portion)
        for waiting in of.values():
            waiting.sort(key=_RANK, reverse=True)
        # Where each owner's next portion stands, the owner, and what the owner has waiting, next last.
        self._heap = [(turns.place(waiting[-1]), owner, waiting) for owner, waiting in of.items()]
        heapq.heapify(self._heap)
        self._all_true_at = self._true_at = turns.version  # versions for which all places, and the first one, are right

    def __bool__(self) -> bool:
        return bool(self._heap)

    def head(self) -> Portion:
        """The next one, still there."""
        heap, turns = self._heap, self._turns
        while self._true_at != turns.version and len(heap) > 1:
            place, owner, waiting = heap[0]
            now = turns.place(waiting[-1])
            if now == place:
                self._true_at = turns.version
            else:
                heapq.heapreplace(heap, (now, owner, waiting))
        return heap[0][2][-1]

    def pop(self) -> None:
        """Take away the head, which was looked at."""
        heap = self._heap
        if self._all_true_at != self._turns.version:
            self._true_at = _UNKNOWN
        _, owner, waiting = heap[0]
        waiting.pop()
        if not waiting:
            heapq.heappop(heap)
        elif len(heap) > 1:
            heapq.heapreplace(heap, (self._turns.place(waiting[-1]), owner, waiting))

    def renew(self) -> None:
        """Compute all places anew: something that an owner held is gone."""
        self._heap = [(self._turns.place(waiting[-1]), owner, waiting) for _, owner, waiting in self._heap]
        heapq.heapify(self._heap)
        self._all_true_at = self._true_at = self._turns.version
