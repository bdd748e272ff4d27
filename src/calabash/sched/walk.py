"""The order in which a cycle comes to what waits: the fairest queue first, within a queue the order of ``turns``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from calabash.sched.queues.fairest import FairestFirst
from calabash.sched.queues.gang import Gang, Portion, portions_of
from calabash.sched.queues.turns import QueueOrder
from calabash.sched.state import SchedulerState


class Walk:
    """One walk over everything that waits. ``starts`` counts what was started meanwhile: that moves shares and turns."""

    def __init__(self, state: SchedulerState) -> None:
        self.starts = 0
        self._state = state
        self._fairest = FairestFirst(state.tree)
        self._orders: dict[str, QueueOrder] = {}

    def started(self, queue: str) -> None:
        """Note that a portion of the queue was started."""
        self.starts += 1
        self._fairest.started(queue)

    def stopped(self, queue: str, owners: Iterable[str]) -> None:
        """Note that requests of these owners were evicted: the use of the queue is smaller, and one of them may go first."""
        self._fairest.stopped(queue)
        if order := self._orders.get(queue):
            for owner in owners:
                order.renew(owner)
            if len(self._orders) > 1:
                self._charge(queue)

    def _charge(self, queue: str) -> None:
        """Let the queue go by what its first portion is charged."""
        amount = self._state.need(self._orders[queue].head().requests)
        if queue not in self._fairest or amount != self._fairest.amount(queue):
            self._fairest.put(queue, amount)

    def portions(self) -> Iterator[Portion]:
        """Portions to start, the fairest queue first; shares and turns move while the walk goes on."""
        waiting: dict[str, list[Portion]] = {}
        for gang in self._state.registry.queued.values():
            waiting.setdefault(gang.queue, []).extend(portions_of(gang))
        orders = self._orders
        orders.update((queue, QueueOrder(portions, self._state.turns)) for queue, portions in waiting.items())
        fairest, need = self._fairest, self._state.need
        if len(orders) > 1:
            for queue in orders:
                self._charge(queue)
        while len(orders) > 1:
            queue = fairest.first()
            order, amount = orders[queue], fairest.amount(queue)
            starts = self.starts
            # Nothing moves while portions of one shape are refused: the queue keeps its turn without a new look.
            while order and starts == self.starts:
                portion = order.head()
                if need(portion.requests) != amount:
                    break
                order.pop()
                yield portion
            if not order:
                del orders[queue]
                fairest.take_out(queue)
            else:
                self._charge(queue)
        for order in orders.values():  # the last one has nobody to be compared with
            while order:
                portion = order.head()
                order.pop()
                yield portion

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
