"""Tests of reservations in random worlds with exact run times: one in quota is delayed only by gangs before it in the order."""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass, field

import pytest
from tests.examples import examples

from calabash.sched.actions.victims import VictimRules
from calabash.sched.amounts import Amount
from calabash.sched.cluster.shape import Shape
from calabash.sched.cluster.spec import GpuSpec, NodeSpec
from calabash.sched.decisions import Bind, Decision, Evict, GangKey, Request
from calabash.sched.queues.spec import QueueSpec
from calabash.sched.scheduler import Scheduler
from calabash.sched.scheduling_order import SchedulingOrder, first_start_group

DEFAULT_CASES = examples(2000)
PARTS = 4
ARRIVALS = 14
EPSILON_S = 1e-6


@dataclass(slots=True)
class PromisedStart:
    """First reserved start of a gang at a time when it would be in quota."""

    start_s: float
    passed_by: set[str] = field(
        default_factory=set
    )  # gangs that started since then, and preceded the gang in the order


class PromiseWorld:
    """A random cluster whose requests run exactly as long as estimated."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        models = self.rng.choice((("T4",), ("T4", "P40")))
        nodes = [
            NodeSpec(
                name=f"n{i}",
                cpu_milli=1 << 30,
                memory_mib=1 << 30,
                gpus=(GpuSpec(model=self.rng.choice(models)),) * self.rng.choice((1, 2, 4)),
            )
            for i in range(self.rng.randint(1, 3))
        ]
        self.models = models
        devices = sum(len(node.gpus) for node in nodes)
        parts = sorted(self.rng.randint(0, devices) for _ in range(2))
        deserved = {"a": parts[0], "b": parts[1] - parts[0], "c": devices - parts[1]}
        self.scheduler = Scheduler(
            nodes, [QueueSpec(name=name, deserved=Amount(count * 1000)) for name, count in deserved.items()]
        )
        self.now_s = 0.0
        self.ends: list[tuple[float, int, str]] = []
        self.promised: dict[GangKey, PromisedStart] = {}
        self.kept = 0
        self.broken: list[str] = []

    def play(self) -> None:
        """Run until all requests have arrived and ended."""
        arrivals = sorted(self.rng.choice((0.0, 1.0, 5.0)) * i for i in range(ARRIVALS))
        number = 0
        while arrivals or self.ends:
            if arrivals and (not self.ends or arrivals[0] <= self.ends[0][0]):
                self.now_s = max(self.now_s, arrivals.pop(0))
                number += 1
                names = self._submit(number)
                self._decide(self.rng.choice((names[0], "")))
            else:
                self.now_s = max(self.now_s, self.ends[0][0])
                while self.ends and self.ends[0][0] <= self.now_s:
                    _, sequence, name = heapq.heappop(self.ends)
                    running = self.scheduler.registry.running(name)
                    if running is not None and running.sequence == sequence:  # it has not been evicted since
                        self.scheduler.finished(name)
                self._decide("")

    def _submit(self, number: int) -> list[str]:
        rng = self.rng
        members = rng.choice((1, 1, 1, 2))
        queue, priority, run_time_s = rng.choice("abc"), rng.choice((0, 0, 1)), float(rng.choice((3, 20, 100, 400)))
        shape = Shape(
            gpu_count=rng.choice((1, 1, 2, 4)),
            gpu_milli=1000,
            models=frozenset(rng.sample(self.models, rng.randint(0, 1))),
        )
        evictable = rng.random() < 0.5
        names = [f"r{number}.{m}" for m in range(members)]
        for name in names:
            self.scheduler.submit(
                Request(
                    id=name, shape=shape, queue=queue, priority=priority, run_time_s=run_time_s, evictable=evictable,
                    submitted_at_s=self.now_s, gang=f"r{number}" if members > 1 else "", min_member=members,
                )
            )  # fmt: skip
        return names

    def _decide(self, name: str) -> None:
        """Run a cycle, or decide about one request, and then run cycles until none is due."""
        for _ in range(20):
            before = self._before_promises()
            decided = self.scheduler.decide(name, self.now_s) if name else self.scheduler.cycle(self.now_s)
            self._note(decided, before)
            name = ""
            wake_at_s = self.scheduler.wake_at_s()
            if wake_at_s is None or wake_at_s > self.now_s:
                self._note_promises(self._before_promises())
                return
        raise AssertionError("cycles do not end")

    def _before_promises(self) -> dict[GangKey, set[GangKey]]:
        """Return for each reserved gang the gangs that precede it in the order of the next cycle."""
        state = self.scheduler.state
        state.advance(self.now_s)
        order = [start_group.gang.key for start_group in SchedulingOrder(state).start_groups()]
        return {key: set(order[: order.index(key)]) for key in self.promised if key in order}

    def _note(self, decided: tuple[Decision, ...], before: dict[GangKey, set[GangKey]]) -> None:
        registry = self.scheduler.registry
        for decision in decided:
            if isinstance(decision, Bind):
                running = registry.running(decision.id)
                assert running is not None
                assert running.request.run_time_s is not None
                heapq.heappush(self.ends, (self.now_s + running.request.run_time_s, running.sequence, decision.id))
                gang = registry.gang_of(decision.id)
                for key, first in before.items():
                    if gang.key in first and key in self.promised:
                        self.promised[key].passed_by.add(decision.id)
                self._started(gang.key)
            elif isinstance(decision, Evict):
                self.promised.pop(registry.gang_of(decision.id).key, None)

    def _note_promises(self, before: dict[GangKey, set[GangKey]]) -> None:
        held = {reservation.gang for reservation in self.scheduler.state.reservations}
        for key in [key for key, first in before.items() if key not in held and first & held]:
            del self.promised[key]  # the one reservation may be given to a gang before it
        for reservation in self.scheduler.state.reservations:
            if (
                reservation.unknown_since_s is None
                and reservation.gang not in self.promised
                and self._in_quota(reservation.gang)
            ):
                self.promised[reservation.gang] = PromisedStart(reservation.start_s)

    def _started(self, key: GangKey) -> None:
        promised = self.promised.pop(key, None)
        if promised is None:
            return
        if self.now_s <= promised.start_s + EPSILON_S:
            self.kept += 1
        elif not promised.passed_by:
            self.broken.append(f"{key[2]!r} was promised {promised.start_s}, and starts at {self.now_s}")

    def _in_quota(self, key: GangKey) -> bool:
        state = self.scheduler.state
        start_group = first_start_group(state.registry.gangs[key])
        priority = max(request.priority for request in start_group.requests)
        return VictimRules(state).would_be_in_quota(start_group.gang.queue, priority, state.need(start_group.requests))


@pytest.mark.parametrize("part", range(PARTS))
def test_reserved_start_in_quota_is_delayed_only_by_requests_before_it(part: int) -> None:
    count = DEFAULT_CASES // PARTS
    kept = 0
    for seed in range(part * count, (part + 1) * count):
        world = PromiseWorld(seed)
        world.play()
        assert world.broken == [], f"seed {seed}"
        kept += world.kept
    assert kept > count // 10


def whole(count: int, *models: str) -> Shape:
    return Shape(gpu_count=count, gpu_milli=1000, models=frozenset(models))


@pytest.mark.parametrize("evictable", [True, False])
def test_reservation_in_quota_is_kept_with_and_without_an_evictable_borrower(evictable: bool) -> None:
    nodes = [
        NodeSpec(name=name, cpu_milli=64_000, memory_mib=1 << 20, gpus=(GpuSpec(model=model),) * count)
        for name, model, count in (("n1", "T4", 2), ("n2", "P40", 1))
    ]
    queues = [
        QueueSpec(name="a", deserved=Amount(2000)),
        QueueSpec(name="b", deserved=Amount(1000)),
        QueueSpec(name="c"),
    ]
    scheduler = Scheduler(nodes, queues, policy="bestfit")
    for name, queue, shape, run_time_s, on in (
        ("old", "a", Shape(cpu_milli=1), 100.0, "n1"),
        ("occupant", "c", whole(1), 100.0, "n1"),
        ("borrower", "c", whole(1), 9000.0, "n2"),
    ):
        may = evictable and name == "borrower"
        request = Request(id=name, queue=queue, shape=shape, run_time_s=run_time_s, evictable=may)
        scheduler.adopt(request, node=on, started_at_s=0.0)
    scheduler.submit(Request(id="pair", queue="a", shape=whole(2, "T4"), run_time_s=50.0))
    scheduler.cycle(5.0)
    assert [r.start_s for r in scheduler.state.reservations] == [100.0]
    scheduler.submit(Request(id="late", queue="b", shape=whole(1, "T4"), run_time_s=5000.0, submitted_at_s=10.0))
    assert not [d for d in scheduler.cycle(10.0) if isinstance(d, Bind)]
    scheduler.finished("occupant")
    assert [d.id for d in scheduler.cycle(100.0) if isinstance(d, Bind)] == ["pair"]


@pytest.mark.parametrize("evictable", [True, False])
def test_reservation_of_a_borrower_yields_to_a_request_in_quota_with_and_without_an_eviction(evictable: bool) -> None:
    nodes = [
        NodeSpec(name=name, cpu_milli=64_000, memory_mib=1 << 20, gpus=(GpuSpec(model=model),) * count)
        for name, model, count in (("n1", "T4", 2), ("n2", "P40", 1))
    ]
    queues = [QueueSpec(name="b", deserved=Amount(1000)), QueueSpec(name="c", over_quota_weight=5.0)]
    scheduler = Scheduler(nodes, queues, policy="bestfit")
    for name, run_time_s, on, may in (("occupant", 100.0, "n1", False), ("borrower", 9000.0, "n2", evictable)):
        request = Request(id=name, queue="c", shape=whole(1), run_time_s=run_time_s, evictable=may)
        scheduler.adopt(request, node=on, started_at_s=0.0)
    scheduler.submit(Request(id="pair", queue="c", shape=whole(2, "T4"), run_time_s=50.0))
    scheduler.cycle(5.0)
    assert [r.request_ids for r in scheduler.state.reservations] == [("pair",)]
    scheduler.submit(Request(id="late", queue="b", shape=whole(1, "T4"), run_time_s=5000.0, submitted_at_s=10.0))
    decided = scheduler.cycle(10.0)
    assert [d.id for d in decided if isinstance(d, Bind)] == ["late"]
    assert not [d for d in decided if isinstance(d, Evict)]
