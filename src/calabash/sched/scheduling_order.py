"""Order in which a cycle attempts the waiting start groups: least pressured queue first, then the order within the queue."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from calabash.sched.queues.gang import Gang, StartGroup, start_groups_of
from calabash.sched.queues.owner_order import QueueOrder
from calabash.sched.queues.pressure_heap import PressureHeap
from calabash.sched.state import SchedulerState


class SchedulingOrder:
    """Iterator over all waiting start groups, which follows the starts and evictions of the cycle.

    Attributes:
        starts: number of start groups that were started; each start changes the pressure of queues and the ranks of owners.
    """

    def __init__(self, state: SchedulerState) -> None:
        self.starts = 0
        self._state = state
        self._queues = PressureHeap(state.tree)
        self._orders: dict[str, QueueOrder] = {}

    def started(self, queue: str) -> None:
        """Update the scheduling order after a start group of the queue was started."""
        self.starts += 1
        self._queues.use_increased(queue)

    def stopped(self, queue: str, owners: Iterable[str]) -> None:
        """Update the scheduling order after requests of these owners in the queue were evicted."""
        self._queues.use_decreased(queue)
        if order := self._orders.get(queue):
            for owner in owners:
                order.renew(owner)
            if len(self._orders) > 1:
                self._set_next_charge(queue)

    def _set_next_charge(self, queue: str) -> None:
        """Update the position of a queue in the order of the queues.

        The position is given by the pressure that the queue will have when its next start group has started.
        """
        amount = self._state.need(self._orders[queue].head().requests)
        if queue not in self._queues or amount != self._queues.amount(queue):
            self._queues.put(queue, amount)

    def start_groups(self) -> Iterator[StartGroup]:
        """Yield the waiting start groups in the order of attempts.

        The order follows the starts and evictions that the caller reports by ``started`` and ``stopped`` in between.
        """
        waiting: dict[str, list[StartGroup]] = {}
        for gang in self._state.registry.queued.values():
            waiting.setdefault(gang.queue, []).extend(start_groups_of(gang))
        orders = self._orders
        orders.update((queue, QueueOrder(start_groups, self._state.owners)) for queue, start_groups in waiting.items())
        queues, need = self._queues, self._state.need
        if len(orders) > 1:
            for queue in orders:
                self._set_next_charge(queue)
        while len(orders) > 1:
            queue = queues.first()
            order, amount = orders[queue], queues.amount(queue)
            starts = self.starts
            # The order of the queues does not change while start groups of one charge are refused.
            while order and starts == self.starts:
                start_group = order.head()
                if need(start_group.requests) != amount:
                    break
                order.pop()
                yield start_group
            if not order:
                del orders[queue]
                queues.remove(queue)
            else:
                self._set_next_charge(queue)
        for order in orders.values():  # the last queue needs no comparison
            while order:
                start_group = order.head()
                order.pop()
                yield start_group

    def _pressure(self, start_group: StartGroup) -> tuple[float, ...]:
        return self._state.tree.pressure(start_group.gang.queue, self._state.need(start_group.requests))

    def comes_before(self, start_group: StartGroup, gang: Gang) -> bool:
        """Return True if the start group is attempted before the gang in a cycle that starts nothing.

        A start group cannot be attempted before the start groups ahead of it in its queue, so these are compared with the gang
        too.
        """
        if not self.is_before(start_group, gang):
            return False
        if start_group.gang.queue == gang.queue:
            return True
        own_key = self._state.owners.sort_key(start_group)
        ahead = {
            self._state.need(other.requests): other
            for waiting in self._state.registry.queued.values()
            if waiting.queue == start_group.gang.queue
            for other in start_groups_of(waiting)
            if self._state.owners.sort_key(other) < own_key
        }
        return all(self._is_before_queue(other, gang) for other in ahead.values())

    def is_before(self, start_group: StartGroup, gang: Gang) -> bool:
        """Return True if the start group has precedence over the gang.

        Other start groups in the queue of the start group are not considered; see ``comes_before``.
        """
        if start_group.gang.queue == gang.queue:
            return self._state.owners.sort_key(start_group) < self._state.owners.sort_key(first_start_group(gang))
        return self._is_before_queue(start_group, gang)

    def _is_before_queue(self, start_group: StartGroup, gang: Gang) -> bool:
        return (self._pressure(start_group), start_group.gang.queue) < (
            self._pressure(first_start_group(gang)),
            gang.queue,
        )


def first_start_group(gang: Gang) -> StartGroup:
    """Return the start group of a waiting gang that is attempted first."""
    return min(start_groups_of(gang), key=lambda start_group: start_group.rank)
