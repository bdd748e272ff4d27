"""Order in which a cycle attempts the waiting portions: least pressured queue first, then the order within the queue."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from calabash.sched.queues.gang import Gang, Portion, portions_of
from calabash.sched.queues.owner_order import QueueOrder
from calabash.sched.queues.pressure_heap import PressureHeap
from calabash.sched.state import SchedulerState


class SchedulingOrder:
    """Iterator over all waiting portions, which follows the starts and evictions of the cycle.

    Attributes:
        starts: number of portions that were started; each start changes the pressure of queues and the ranks of owners.
    """

    def __init__(self, state: SchedulerState) -> None:
        self.starts = 0
        self._state = state
        self._queues = PressureHeap(state.tree)
        self._orders: dict[str, QueueOrder] = {}

    def started(self, queue: str) -> None:
        """Update the order after a portion of the queue was started."""
        self.starts += 1
        self._queues.use_increased(queue)

    def stopped(self, queue: str, owners: Iterable[str]) -> None:
        """Update the order after requests of these owners in the queue were evicted."""
        self._queues.use_decreased(queue)
        if order := self._orders.get(queue):
            for owner in owners:
                order.renew(owner)
            if len(self._orders) > 1:
                self._set_next_charge(queue)

    def _set_next_charge(self, queue: str) -> None:
        """Sort the queue among the queues by the pressure that it will have when its next portion has started."""
        amount = self._state.need(self._orders[queue].head().requests)
        if queue not in self._queues or amount != self._queues.amount(queue):
            self._queues.put(queue, amount)

    def portions(self) -> Iterator[Portion]:
        """Yield the waiting portions in the order of attempts.

        The order follows the starts and evictions that the caller reports by ``started`` and ``stopped`` in between.
        """
        waiting: dict[str, list[Portion]] = {}
        for gang in self._state.registry.queued.values():
            waiting.setdefault(gang.queue, []).extend(portions_of(gang))
        orders = self._orders
        orders.update((queue, QueueOrder(portions, self._state.owners)) for queue, portions in waiting.items())
        queues, need = self._queues, self._state.need
        if len(orders) > 1:
            for queue in orders:
                self._set_next_charge(queue)
        while len(orders) > 1:
            queue = queues.first()
            order, amount = orders[queue], queues.amount(queue)
            starts = self.starts
            # The order of the queues does not change while portions of one charge are refused.
            while order and starts == self.starts:
                portion = order.head()
                if need(portion.requests) != amount:
                    break
                order.pop()
                yield portion
            if not order:
                del orders[queue]
                queues.remove(queue)
            else:
                self._set_next_charge(queue)
        for order in orders.values():  # the last queue needs no comparison
            while order:
                portion = order.head()
                order.pop()
                yield portion

    def _pressure(self, portion: Portion) -> tuple[float, ...]:
        return self._state.tree.pressure(portion.gang.queue, self._state.need(portion.requests))

    def comes_before(self, portion: Portion, gang: Gang) -> bool:
        """Return True if the portion is attempted before the gang in a cycle that starts nothing.

        A portion cannot be attempted before the portions ahead of it in its queue, so these are compared with the gang too.
        """
        if not self.is_before(portion, gang):
            return False
        if portion.gang.queue == gang.queue:
            return True
        own_key = self._state.owners.sort_key(portion)
        ahead = {
            self._state.need(other.requests): other
            for waiting in self._state.registry.queued.values()
            if waiting.queue == portion.gang.queue
            for other in portions_of(waiting)
            if self._state.owners.sort_key(other) < own_key
        }
        return all(self._is_before_queue(other, gang) for other in ahead.values())

    def is_before(self, portion: Portion, gang: Gang) -> bool:
        """Return True if the portion has precedence over the gang.

        Other portions in the queue of the portion are not considered; see ``comes_before``.
        """
        if portion.gang.queue == gang.queue:
            return self._state.owners.sort_key(portion) < self._state.owners.sort_key(first_portion(gang))
        return self._is_before_queue(portion, gang)

    def _is_before_queue(self, portion: Portion, gang: Gang) -> bool:
        return (self._pressure(portion), portion.gang.queue) < (self._pressure(first_portion(gang)), gang.queue)


def first_portion(gang: Gang) -> Portion:
    """Return the portion of a waiting gang that is attempted first."""
    return min(portions_of(gang), key=lambda portion: portion.rank)
