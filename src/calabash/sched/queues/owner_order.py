"""Order of the waiting start groups within one queue: by priority, then by the use of their owner, then by submission.

Theory of operation. One owner may have thousands of requests in a queue. If only the time of submission counted, every other
owner would wait for all of them. So the requests of a queue are ordered by priority, then by the rank of their owner, then by
submission. The rank of an owner is the amount that it uses in that queue now, then the number of its last start: the owner
that uses least is first, and of equal ones the one that started something longest ago. Two owners with equal requests
alternate, and an owner with long jobs is not overtaken by one with many short jobs.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter

from calabash.sched.amounts import Amount
from calabash.sched.queues.gang import StartGroup

OwnerRank = tuple[float, int, int]
"""Used GPU milli and CPU milli, and the number of the last start."""
_RANK = attrgetter("rank")
_UNKNOWN = -1


@dataclass(slots=True)
class _Owner:
    """Requests and use of one owner in one queue."""

    requests: int = 0
    gpu_milli: float = 0
    cpu_milli: int = 0
    last_start: int = 0
    start_before: int = 0


class OwnerUse:
    """Use per queue and owner. Owners without requests in a queue are dropped.

    Attributes:
        version: changes with every start and stop, on which the ranks depend.
    """

    def __init__(self) -> None:
        self._owners: dict[tuple[str, str], _Owner] = {}
        self.version = 0
        self._starts = 0

    def add_request(self, queue: str, owner: str) -> None:
        """Count one more request of the owner."""
        self._owners.setdefault((queue, owner), _Owner()).requests += 1

    def remove_request(self, queue: str, owner: str) -> None:
        """Count one request fewer, waiting or running."""
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
        """Undo the effect of the owner's last start on its rank, because the start failed.

        The rank then counts the start before the failed one as the owner's last start.
        """
        entry = self._owners[queue, owner]
        entry.last_start = entry.start_before

    def rank(self, queue: str, owner: str) -> OwnerRank:
        """Return the rank of an owner in a queue; the smaller rank goes first."""
        entry = self._owners.get((queue, owner))
        return (entry.gpu_milli, entry.cpu_milli, entry.last_start) if entry else (0, 0, 0)

    def sort_key(self, start_group: StartGroup) -> tuple[object, ...]:
        """Return the sort key of a start group in its queue: priority, core before surplus, rank of the owner, submission."""
        gang, rank = start_group.gang, start_group.rank
        return (rank[0], rank[1], self.rank(gang.queue, gang.owner), rank[2:])


class QueueOrder:
    """Priority queue of the waiting start groups of one queue; ranks of owners may change while it is read.

    Each owner has one entry in the heap, with the sort key of its next start group. A start can only increase the key of an
    owner, so a stored key is a lower bound: the first entry is compared with its current key, and is inserted again if the key
    has grown. An eviction decreases the key, and ``renew`` then adds a new entry; the old one is dropped when it comes first.
    """

    def __init__(self, start_groups: Iterable[StartGroup], owners: OwnerUse) -> None:
        self._owners = owners
        self._waiting: dict[str, list[StartGroup]] = {}  # by owner, the next start group last
        for start_group in start_groups:
            self._waiting.setdefault(start_group.gang.owner, []).append(start_group)
        for waiting in self._waiting.values():
            waiting.sort(key=_RANK, reverse=True)
        self._keys = {owner: owners.sort_key(waiting[-1]) for owner, waiting in self._waiting.items()}
        self._heap = [(key, owner) for owner, key in self._keys.items()]
        heapq.heapify(self._heap)
        # Versions of ``owners`` for which all keys are current, and for which the first entry is current.
        self._all_current_at = self._first_current_at = owners.version

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def head(self) -> StartGroup:
        """Return the next start group without removing it."""
        heap, owners, keys = self._heap, self._owners, self._keys
        while True:
            key, owner = heap[0]
            if keys.get(owner) is not key:
                heapq.heappop(heap)
                continue
            start_group = self._waiting[owner][-1]
            if self._first_current_at == owners.version or len(keys) == 1:
                return start_group
            current = owners.sort_key(start_group)
            if current == key:
                self._first_current_at = owners.version
                return start_group
            keys[owner] = current
            heapq.heapreplace(heap, (current, owner))

    def pop(self) -> None:
        """Remove the start group that ``head`` returned last."""
        if self._all_current_at != self._owners.version:
            self._first_current_at = _UNKNOWN
        _, owner = self._heap[0]
        waiting = self._waiting[owner]
        waiting.pop()
        if waiting and len(self._keys) == 1:
            return  # a single owner needs no current key
        if waiting:
            key = self._keys[owner] = self._owners.sort_key(waiting[-1])
            heapq.heapreplace(self._heap, (key, owner))
        else:
            del self._waiting[owner], self._keys[owner]
            heapq.heappop(self._heap)

    def renew(self, owner: str) -> None:
        """Recompute the sort key of an owner after one of its requests was evicted."""
        self._all_current_at = self._first_current_at = _UNKNOWN
        if waiting := self._waiting.get(owner):
            key = self._keys[owner] = self._owners.sort_key(waiting[-1])
            heapq.heappush(self._heap, (key, owner))
