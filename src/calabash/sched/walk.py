"""The order in which a cycle comes to what waits: the fairest queue first, within a queue the order of ``turns``."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from calabash.sched.queues.fairshare import Amount
from calabash.sched.queues.gang import Gang, Portion, portions_of
from calabash.sched.queues.turns import QueueOrder
from calabash.sched.state import SchedulerState


class Walk:
    """One walk over everything that waits. ``starts`` counts what was started meanwhile: that moves shares and turns."""

    def __init__(self, state: SchedulerState) -> None:
        self.starts = 0
        self._state = state
        self._pressures: dict[tuple[str, Amount], tuple[float, ...]] = {}  # until something starts

    def started(self) -> None:
        """A portion was started."""
        self.starts += 1
        self._pressures.clear()

    def portions(self) -> Iterator[Portion]:
        """Portions to start, the fairest queue first; shares and turns move while the walk goes on."""
        waiting: dict[str, list[Portion]] = {}
        for gang in self._state.registry.queued.values():
            waiting.setdefault(gang.queue, []).extend(portions_of(gang))
        orders = {queue: QueueOrder(portions, self._state.turns) for queue, portions in waiting.items()}
        heap = [(self._pressure(order.head()), queue) for queue, order in orders.items()]
        heapq.heapify(heap)
        while len(heap) > 1:
            queue = heap[0][1]
            order = orders[queue]
            now = (self._pressure(order.head()), queue)
            if min(heap[1:3]) < now:  # the next one after it
                heapq.heapreplace(heap, now)
                continue
            heapq.heappop(heap)
            # Nothing moves while portions of one shape are refused: the queue keeps its turn without a new look.
            starts, need = self.starts, self._state.need(order.head().requests)
            while order and starts == self.starts:
                portion = order.head()
                if self._state.need(portion.requests) != need:
                    break
                order.pop()
                yield portion
            if order:
                heapq.heappush(heap, (self._pressure(order.head()), queue))
        for _, queue in heap:  # the last one has nobody to be compared with
            order = orders[queue]
            while order:
                portion = order.head()
                order.pop()
                yield portion

    def _pressure(self, portion: Portion) -> tuple[float, ...]:
        key = (portion.gang.queue, self._state.need(portion.requests))
        found = self._pressures.get(key)
        if found is None:
            found = self._pressures[key] = self._state.tree.pressure(*key)
        return found

    def comes_before(self, portion: Portion, gang: Gang) -> bool:
        """Return True if a walk that starts nothing comes to the portion before it comes to the gang.

        A queue is where its next portion is, so a portion comes no earlier than those before it in its queue.
        """
        if not self.is_before(portion, gang):
            return False
        if portion.gang.queue == gang.queue:
            return True
        place = self._state.turns.place(portion)
        ahead = {
            self._state.need(other.requests): other
            for waiting in self._state.registry.queued.values()
            if waiting.queue == portion.gang.queue
            for other in portions_of(waiting)
            if self._state.turns.place(other) < place
        }
        return all(self._is_before_queue(other, gang) for other in ahead.values())

    def is_before(self, portion: Portion, gang: Gang) -> bool:
        """Return True if the portion has the right to go before the gang, whatever else waits in its queue."""
        if portion.gang.queue == gang.queue:
            return self._state.turns.place(portion) < self._state.turns.place(first_of(gang))
        return self._is_before_queue(portion, gang)

    def _is_before_queue(self, portion: Portion, gang: Gang) -> bool:
        return (self._pressure(portion), portion.gang.queue) < (self._pressure(first_of(gang)), gang.queue)


def first_of(gang: Gang) -> Portion:
    """What of a waiting gang is tried first."""
    return min(portions_of(gang), key=lambda portion: portion.rank)
