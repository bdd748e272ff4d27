"""Tests of cycles with a time limit: cycles end in time, rounds attempt all requests, queues share the time equally."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.oracle.histories import History

from calabash.model.errors import Reason
from calabash.sched.cluster.shape import Shape
from calabash.sched.cluster.spec import GpuSpec, NodeSpec
from calabash.sched.cycle import Cycle
from calabash.sched.decisions import Bind, Decision, Defer, Options, Request
from calabash.sched.queues.gang import StartGroup
from calabash.sched.queues.spec import QueueSpec
from calabash.sched.rounds import CycleLimit
from calabash.sched.scheduler import Scheduler

LIMIT_S = 20.0


class Costs:
    """A clock that advances by a cost, in seconds, with each attempt of a request, and the list of attempts."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.of: dict[str, float] = {}
        self.attempts: list[StartGroup] = []

    @property
    def attempted(self) -> list[str]:
        return [start_group.requests[0].id for start_group in self.attempts]

    def cost(self, start_group: StartGroup) -> float:
        return self.of.get(start_group.requests[0].id, 1.0)


@contextmanager
def costly() -> Iterator[Costs]:
    """Let attempts of requests cost time within the context."""
    made, try_to_start = Costs(), Cycle._try_to_start

    def timed(cycle: Cycle, start_group: StartGroup) -> Reason | None:
        made.attempts.append(start_group)
        made.now_s += made.cost(start_group)
        return try_to_start(cycle, start_group)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Cycle, "_try_to_start", timed)
        yield made


@pytest.fixture
def costs() -> Iterator[Costs]:
    with costly() as made:
        yield made


def limited(costs: Costs, *, devices: int = 1, queues: int = 2, nodes: int = 1, limit_s: float = LIMIT_S) -> Scheduler:
    gpus = (GpuSpec(),) * devices
    specs = [NodeSpec(name=f"n{number}", cpu_milli=10**6, memory_mib=10**6, gpus=gpus) for number in range(nodes)]
    limit = CycleLimit(clock=lambda: costs.now_s, limit_s=limit_s)
    return Scheduler(specs, [QueueSpec(name=f"q{i}") for i in range(queues)], options=Options(), limit=limit)


def ask(
    scheduler: Scheduler, name: str, queue: str = "q0", *, gpus: int = 1, milli: int = 1000, cpu_milli: int = 0
) -> None:
    """Submit a request; different amounts make requests that are refused one by one."""
    shape = Shape(gpu_count=gpus, gpu_milli=milli, cpu_milli=cpu_milli)
    scheduler.submit(Request(id=name, shape=shape, queue=queue, submitted_at_s=float(len(scheduler.registry.gangs))))


def backlog(scheduler: Scheduler, count: int, queue: str = "q0") -> None:
    """Fill the devices, and submit requests that do not fit."""
    for row, node in enumerate(scheduler.specs.values()):
        ask(scheduler, f"full{row}", gpus=len(node.gpus))
    scheduler.cycle(0.0)
    while scheduler.wake_at_s() == 0.0:
        scheduler.cycle(0.0)
    for number in range(count):
        ask(scheduler, f"{queue}-{number}", queue, milli=100 + number)


def finish_round(scheduler: Scheduler, now_s: float, cycles_max: int = 1000) -> int:
    """Run the cycles that the round still needs; return their number."""
    for number in range(cycles_max):
        if not (scheduler.unfinished or scheduler.state.unsettled):
            return number
        assert scheduler.wake_at_s() == now_s
        scheduler.cycle(now_s)
    raise AssertionError("cycles are due without an end")


def test_cycle_ends_at_its_time_limit_and_the_next_continues_the_round(costs: Costs) -> None:
    scheduler = limited(costs)
    backlog(scheduler, 100)
    costs.attempts.clear()
    scheduler.cycle(1.0)
    assert len(costs.attempts) == 20
    assert scheduler.wake_at_s() == 1.0
    assert finish_round(scheduler, 1.0) == 4
    assert costs.attempted == [f"q0-{number}" for number in range(100)]


def test_request_gets_its_reason_in_the_cycle_that_attempts_it(costs: Costs) -> None:
    scheduler = limited(costs)
    backlog(scheduler, 30)
    told = [[d.id for d in scheduler.cycle(1.0) if isinstance(d, Defer)] for _ in range(2)]
    assert [len(ids) for ids in told] == [20, 10]
    assert len({name for ids in told for name in ids}) == 30


def test_new_request_does_not_wait_for_expensive_requests_of_another_queue(costs: Costs) -> None:
    scheduler = limited(costs, devices=2)
    for number in range(50):
        name = f"hard{number}"
        ask(scheduler, name, gpus=3, cpu_milli=number)  # more devices than a node has
        costs.of[name] = 15.0
    scheduler.cycle(1.0)
    ask(scheduler, "small", "q1")
    decided = scheduler.decide("small", 1.0)
    assert [d.id for d in decided if isinstance(d, Bind)] == ["small"]
    assert len(costs.attempts) <= 5


@given(data=st.data())
@settings(max_examples=examples(60), deadline=None)
def test_queues_with_waiting_requests_use_equal_time(data: st.DataObject) -> None:
    """Check times over random queues.

    Each request is attempted once per round, a cycle exceeds its limit by one attempt at most, and no queue is ahead of a queue
    with requests to be attempted by more than the time of one cycle and one attempt.
    """
    counts = data.draw(st.lists(st.integers(0, 12), min_size=1, max_size=6), label="requests of each queue")
    limit_s = data.draw(st.floats(1.0, 50.0), label="limit")
    with costly() as costs:
        scheduler = limited(costs, queues=len(counts), limit_s=limit_s)
        ask(scheduler, "full")
        finish_round(scheduler, 0.0)
        unseen = Counter({f"q{number}": count for number, count in enumerate(counts)})
        for queue, count in unseen.items():
            for number in range(count):
                ask(scheduler, f"{queue}-{number}", queue, milli=100 + number + 20 * int(queue[1:]))
                costs.of[f"{queue}-{number}"] = data.draw(st.floats(0.1, 40.0))
        costs.attempts.clear()
        dearest_s = max(costs.of.values(), default=0.0)
        used: Counter[str] = Counter()
        scheduler.cycle(1.0)
        done = 0
        for _ in range(200):
            spent_s = sum(map(costs.cost, costs.attempts[done:]))
            assert spent_s <= limit_s + dearest_s
            for start_group in costs.attempts[done:]:
                waiting = [used[queue] for queue, left in unseen.items() if left]
                assert used[start_group.gang.queue] <= min(waiting) + limit_s + dearest_s
                unseen[start_group.gang.queue] -= 1
                used[start_group.gang.queue] += costs.cost(start_group)  # type: ignore[assignment]
            done = len(costs.attempts)
            if not scheduler.unfinished:
                break
            scheduler.cycle(1.0)
            assert len(costs.attempts) > done, "a cycle that was due looked at nothing"
        assert sorted(costs.attempted) == sorted(name for name in costs.of)


@pytest.mark.parametrize("seed", range(6))
def test_decisions_equal_those_without_a_limit_if_the_time_suffices(seed: int) -> None:
    with_limit, without = History(seed), History(seed)
    with_limit.scheduler._limit = CycleLimit(clock=lambda: 0.0, limit_s=math.inf)
    assert with_limit.run(60) == without.run(60) > 0
    assert with_limit.scheduler.snapshot() == without.scheduler.snapshot()


def test_reservation_binds_others_in_cycles_that_do_not_attempt_its_gang(costs: Costs) -> None:
    scheduler = limited(costs, devices=2, limit_s=1.0)
    ask(scheduler, "half")
    finish_round(scheduler, 0.0)
    ask(scheduler, "wide", gpus=2)
    scheduler.cycle(1.0)
    finish_round(scheduler, 1.0)
    assert [r.gang for r in scheduler.state.reservations] == [scheduler.registry.gang_of("wide").key]
    for number in range(5):
        ask(scheduler, f"long{number}", "q0")
    scheduler.state.freed()
    for _ in range(12):
        assert not any(isinstance(d, Bind) for d in scheduler.cycle(2.0))
        assert [r.gang for r in scheduler.state.reservations] == [scheduler.registry.gang_of("wide").key]
    assert scheduler.wake_at_s() != 2.0


def test_complete_round_of_several_cycles_is_not_repeated_without_a_change(costs: Costs) -> None:
    scheduler = limited(costs)
    scheduler.state.options = Options(reservations=0)
    backlog(scheduler, 50)
    finish_round(scheduler, 1.0)
    scheduler.cycle(1.0)
    finish_round(scheduler, 1.0)
    costs.attempts.clear()
    scheduler.cycle(2.0)
    assert costs.attempts == []


def test_change_between_the_cycles_of_a_round_causes_another_round(costs: Costs) -> None:
    scheduler = limited(costs)
    backlog(scheduler, 50)
    scheduler.cycle(1.0)
    scheduler.finished("full0")
    decided: list[Decision] = []
    for _ in range(20):
        decided += scheduler.cycle(1.0)
    assert [d.id for d in decided if isinstance(d, Bind)][:1] != []
    bound = {d.id for d in decided if isinstance(d, Bind)}
    assert "q0-0" in bound  # was refused before the device was freed
    assert scheduler.wake_at_s() != 1.0


def test_an_error_ends_the_round(costs: Costs, monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = limited(costs)
    backlog(scheduler, 30)
    scheduler.cycle(1.0)
    with monkeypatch.context() as patch:
        patch.setattr(Cycle, "_attempt", lambda *_: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            scheduler.cycle(1.0)
    costs.attempts.clear()
    scheduler.cycle(1.0)
    finish_round(scheduler, 1.0)
    assert len(costs.attempts) == 30
