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

    Each owner has one place in the heap, that of its next portion. A start moves the turn of its owner back, so that places are
    bounds from before: the first one is compared with what it is now, and sorted in anew if it has moved. After an eviction,
    which moves a turn forward, ``renew`` gives the owner a new place; its entry of the place before is left out later.
    """

    def __init__(self, portions: Iterable[Portion], turns: OwnerTurns) -> None:
        self._turns = turns
        self._waiting: dict[str, list[Portion]] = {}  # of each owner, next last
        for portion in portions:
            self._waiting.setdefault(portion.gang.owner, []).append(portion)
        for waiting in self._waiting.values():
            waiting.sort(key=_RANK, reverse=True)
        self._places = {owner: turns.place(waiting[-1]) for owner, waiting in self._waiting.items()}
        self._heap = [(place, owner) for owner, place in self._places.items()]
        heapq.heapify(self._heap)
        self._all_true_at = self._true_at = turns.version  # versions for which all places, and the first one, are right

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def head(self) -> Portion:
        """The next one, still there."""
        heap, turns, places = self._heap, self._turns, self._places
        while True:
            place, owner = heap[0]
            if places.get(owner) is not place:
                heapq.heappop(heap)
                continue
            portion = self._waiting[owner][-1]
            if self._true_at == turns.version or len(places) == 1:
                return portion
            now = turns.place(portion)
            if now == place:
                self._true_at = turns.version
                return portion
            places[owner] = now
            heapq.heapreplace(heap, (now, owner))

    def pop(self) -> None:
        """Take away the head, which was looked at."""
        if self._all_true_at != self._turns.version:
            self._true_at = _UNKNOWN
        _, owner = self._heap[0]
        waiting = self._waiting[owner]
        waiting.pop()
        if waiting and len(self._places) == 1:
            return  # with nobody to be compared with, any place will do
        if waiting:
            place = self._places[owner] = self._turns.place(waiting[-1])
            heapq.heapreplace(self._heap, (place, owner))
        else:
            del self._waiting[owner], self._places[owner]
            heapq.heappop(self._heap)

    def renew(self, owner: str) -> None:
        """Compute the place of an owner anew after one of its requests was evicted."""
        self._all_true_at = self._true_at = _UNKNOWN
        if waiting := self._waiting.get(owner):
            place = self._places[owner] = self._turns.place(waiting[-1])
            heapq.heappush(self._heap, (place, owner))
