"""Oracle of the attempt order: the next queue is that of least pressure, found by comparing all queues."""

from __future__ import annotations

import pytest
from tests.oracle.histories import History

from calabash.sched.queues.pressure_heap import PressureHeap
from calabash.sched.scheduling_order import SchedulingOrder
from calabash.sched.state import SchedulerState

SEEDS = range(3000, 3012)
STEPS = 120


def test_next_queue_is_the_one_of_least_pressure_in_random_histories(monkeypatch: pytest.MonkeyPatch) -> None:
    orders_by_heap: dict[int, SchedulingOrder] = {}
    compared = 0
    initialise, first = SchedulingOrder.__init__, PressureHeap.first

    def initialised(self: SchedulingOrder, state: SchedulerState) -> None:
        initialise(self, state)
        orders_by_heap.clear()
        orders_by_heap[id(self._queues)] = self

    def checked(self: PressureHeap) -> str:
        nonlocal compared
        order, found = orders_by_heap[id(self)], first(self)
        state, orders = order._state, order._orders

        def key(queue: str) -> tuple[tuple[float, ...], str]:
            return state.tree.pressure(queue, state.need(orders[queue].head().requests)), queue

        assert found == min(orders, key=key)
        compared += 1
        return found

    monkeypatch.setattr(SchedulingOrder, "__init__", initialised)
    monkeypatch.setattr(PressureHeap, "first", checked)
    for seed in SEEDS:
        History(seed).run(STEPS)
    assert compared > 500
