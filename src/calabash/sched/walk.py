"""The order in which a cycle comes to what waits: the fairest queue first, within a queue the order of ``turns``."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

from calabash.sched.queues.fairshare import Amount
from calabash.sched.queues.gang import Gang, Portion, portions_of
from calabash.sched.queues.turns import QueueOrder
from calabash.sched.state import SchedulerState


@dataclass(slots=True)
class _Place:
    """Place of a queue in the walk.

    Attributes:
        head: its next portion, and ``need`` what that is charged.
        starts: how many starts there were when the pressure was computed.
    """

    order: QueueOrder
    head: Portion
    need: Amount
    pressure: tuple[float, ...]
    starts: int


class Walk:
    """One walk over everything that waits. ``starts`` counts what was started meanwhile: that moves shares and turns."""

    def __init__(self, state: SchedulerState) -> None:
        self.starts = 0
        self._state = state

    def started(self) -> None:
        """A portion was started."""
        self.starts += 1

    def portions(self) -> Iterator[Portion]:
        """Portions to start, the fairest queue first; shares and turns move while the walk goes on."""
        waiting: dict[str, list[Portion]] = {}
        for gang in self._state.registry.queued.values():
            waiting.setdefault(gang.queue, []).extend(portions_of(gang))
        heap = [self._place_of(queue, QueueOrder(portions, self._state.turns)) for queue, portions in waiting.items()]
        heapq.heapify(heap)
        while len(heap) > 1:
            now = self._renewed(heap[0])
            if heap[1] < now or (len(heap) > 2 and heap[2] < now):  # the next one after it
                heapq.heapreplace(heap, now)
                continue
            heapq.heappop(heap)
            _, queue, place = now
            order = place.order
            # Nothing moves while portions of one shape are refused: the queue keeps its turn without a new look.
            starts, need = self.starts, place.need
            while order and starts == self.starts:
                portion = order.head()
                if self._state.need(portion.requests) != need:
                    break
                order.pop()
                yield portion
            if order:
                heapq.heappush(heap, self._place_of(queue, order))
        for _, _, place in heap:  # the last one has nobody to be compared with
            order = place.order
            while order:
                portion = order.head()
                order.pop()
                yield portion

    def _place_of(self, queue: str, order: QueueOrder) -> tuple[tuple[float, ...], str, _Place]:
        """Return what a queue is sorted by, and its place."""
        head = order.head()
        need = self._state.need(head.requests)
        pressure = self._state.tree.pressure(queue, need)
        return pressure, queue, _Place(order, head, need, pressure, self.starts)

    def _renewed(self, entry: tuple[tuple[float, ...], str, _Place]) -> tuple[tuple[float, ...], str, _Place]:
        """Return the same as it is now."""
        _, queue, place = entry
        head = place.order.head()
        if head is not place.head:
            place.head, place.need = head, self._state.need(head.requests)
        elif place.starts == self.starts:
            return entry
        place.pressure, place.starts = self._state.tree.pressure(queue, place.need), self.starts
        return place.pressure, queue, place

    def _pressure(self, portion: Portion) -> tuple[float, ...]:
        return self._state.tree.pressure(portion.gang.queue, self._state.need(portion.requests))

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
