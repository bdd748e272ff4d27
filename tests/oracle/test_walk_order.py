"""In histories, each walk comes to the queue of least pressure, found by comparing all of them."""

from __future__ import annotations

import pytest
from tests.oracle.histories import History

from calabash.sched.queues.fairest import FairestFirst
from calabash.sched.state import SchedulerState
from calabash.sched.walk import Walk

SEEDS = range(3000, 3012)
STEPS = 120


def test_a_walk_comes_to_the_queue_of_least_pressure(monkeypatch: pytest.MonkeyPatch) -> None:
    walks: dict[int, Walk] = {}
    compared = 0
    begin, first = Walk.__init__, FairestFirst.first

    def begun(self: Walk, state: SchedulerState) -> None:
        begin(self, state)
        walks.clear()
        walks[id(self._fairest)] = self

    def checked(self: FairestFirst) -> str:
        nonlocal compared
        walk, found = walks[id(self)], first(self)
        state, orders = walk._state, walk._orders

        def place(queue: str) -> tuple[tuple[float, ...], str]:
            return state.tree.pressure(queue, state.need(orders[queue].head().requests)), queue

        assert found == min(orders, key=place)
        compared += 1
        return found

    monkeypatch.setattr(Walk, "__init__", begun)
    monkeypatch.setattr(FairestFirst, "first", checked)
    for seed in SEEDS:
        History(seed).run(STEPS)
    assert compared > 500
