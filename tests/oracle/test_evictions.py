"""Oracle of evictions: decisions equal those of the plain implementation in random worlds of queues, gangs and shapes."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from unittest.mock import patch

import pytest
from tests.examples import examples
from tests.oracle.plain_evictions import PlainEviction

from calabash.sched import (
    UNLIMITED,
    Amount,
    Decision,
    Evict,
    GpuSpec,
    NodeSpec,
    Options,
    QueueSpec,
    Request,
    Scheduler,
    Shape,
)
from calabash.sched.actions.evict import Eviction
from calabash.sched.updates import set_evictable

PARTS = 4
STEPS = 14
Act = Callable[[Scheduler], object]


def submit(request: Request, scheduler: Scheduler) -> None:
    scheduler.submit(request)


def finish(name: str, scheduler: Scheduler) -> None:
    scheduler.finished(name)


def change(name: str, scheduler: Scheduler, *, evictable: bool, guarded: bool) -> None:
    if scheduler.registry.running(name):
        set_evictable(scheduler, name, evictable=evictable, guarded=guarded)


class World:
    """A random cluster with queues and random events."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.now_s = 0.0
        self._number = 0
        self.live: list[str] = []
        self.width = rng.choice((2, 4, 8))
        self.gpus = tuple(
            GpuSpec(model=rng.choice(("A", "B")), memory_mib=40_960, numa=k // 4) for k in range(self.width)
        )
        self.nodes = [self._node(f"n{i}") for i in range(rng.choice((2, 4, 8, 20)))]
        self.devices = sum(len(node.gpus) for node in self.nodes)
        self.queues, self.leaves = self._queues()
        self.options = Options(
            reclaim=rng.random() < 0.9,
            preempt=rng.random() < 0.9,
            reclaim_fair_share=rng.random() < 0.7,
            reservations=rng.choice((0, 1, 2)),
            defragment_moves_max=rng.choice((0, 0, 3)),
            min_run_time_s=rng.choice((0.0, 0.0, 15.0)),
            half_life_s=rng.choice((0.0, 0.0, 500.0)),
        )

    def scheduler(self) -> Scheduler:
        return Scheduler(self.nodes, self.queues, options=self.options, gpus_per_node_max=self.width)

    def _node(self, name: str) -> NodeSpec:
        count = self.rng.choice((self.width, self.width, max(1, self.width // 2)))
        cpu_milli = self.rng.choice((8_000, 96_000))
        return NodeSpec(name=name, cpu_milli=cpu_milli, memory_mib=1 << 18, gpus=self.gpus[:count])

    def _queues(self) -> tuple[list[QueueSpec], list[str]]:
        rng, names = self.rng, [f"q{i}" for i in range(self.rng.randint(1, 4))]
        managed = rng.random() < 0.7
        queues = []
        for name in names:
            milli = rng.randint(0, self.devices // len(names)) * 1000 if managed else 0
            deserved = Amount(milli, rng.choice((0, 0, 50_000)) if managed else 0)
            queues.append(QueueSpec(name=name, deserved=deserved, over_quota_weight=rng.choice((0.0, 1.0, 2.0))))
        if rng.random() < 0.4:
            limit = max(queues[0].deserved.gpu_milli, rng.randint(1, self.devices) * 1000)
            queues[0] = replace(queues[0], limit=UNLIMITED._replace(gpu_milli=limit))
        if rng.random() < 0.6:
            return queues, names
        parent = names.pop()
        below = [f"{parent}c{i}" for i in range(3)]
        queues += [QueueSpec(name=c, parent=parent, deserved=Amount(rng.choice((0, 1000, 2000)))) for c in below]
        return queues, names + below

    def _shape(self) -> Shape:
        rng, cpu_milli = self.rng, self.rng.choice((0, 0, 500, 2000))
        kind = rng.choice(("whole",) * 6 + ("share",) * 3 + ("halves", "memory", "host"))
        if kind == "whole":
            count = rng.choice([n for n in (1, 1, 1, 2, 2, 4, 8) if n <= self.width])
            return Shape(gpu_count=count, gpu_milli=1000, cpu_milli=cpu_milli)
        if kind == "share":
            return Shape(gpu_count=1, gpu_milli=rng.choice((100, 250, 500, 800, 950)), cpu_milli=cpu_milli)
        if kind == "halves":
            return Shape(gpu_count=2, gpu_milli=500, cpu_milli=cpu_milli)
        if kind == "memory":
            mib = rng.choice((1_000, 20_000))
            return Shape(gpu_count=1, gpu_memory_mib=mib, gpu_slices=1, gpu_slices_max=8, mode="timeslice")
        return Shape(cpu_milli=rng.choice((1_000, 4_000)))

    def requests(self, queue: str, priority: int) -> list[Request]:
        """Return one request, or the members of a gang."""
        self._number += 1
        rng, name = self.rng, f"r{self._number}"
        members = rng.choice((1, 1, 1, 1, 2, 3, 5))
        minimum, shape, alike = rng.randint(1, members), self._shape(), rng.random() < 0.7
        evictable, guarded = rng.random() < 0.93, rng.random() < 0.1
        found = [
            Request(
                id=f"{name}.{i}", queue=queue, shape=shape if alike else self._shape(), priority=priority,
                owner=f"o{self._number % 3}", gang=name if members > 1 else "", min_member=minimum,
                run_time_s=rng.choice((None, 10.0, 100.0)), submitted_at_s=self.now_s, evictable=evictable, guarded=guarded,
            )
            for i in range(members)
        ]  # fmt: skip
        self.live.extend(r.id for r in found)
        return found

    def events(self, step: int) -> list[Act]:
        """Return the events before a cycle, as functions of a scheduler."""
        rng, acts = self.rng, list[Act]()
        self.now_s += rng.choice((1.0, 5.0, 20.0))
        many = max(1, self.devices // 2) if step == 0 else rng.choice((0, 1, 3, 8))
        for _ in range(many):
            queue = rng.choice(self.leaves[:2] if step == 0 else self.leaves)
            for request in self.requests(queue, 0 if step == 0 else rng.choice((0, 0, 1, 2))):
                acts.append(partial(submit, request))
        for _ in range(min(len(self.live) - 1, rng.choice((0, 0, 1, 3))) if step else 0):
            ended = self.live.pop(rng.randrange(len(self.live)))
            acts.append(partial(finish, ended))
        chosen, evictable, guarded = rng.choice(self.live), rng.random() < 0.5, rng.random() < 0.5
        if rng.random() < 0.2:
            acts.append(partial(change, chosen, evictable=evictable, guarded=guarded))
        if rng.random() < 0.1:
            acts.append(lambda s: len(s.specs) > 1 and s.remove_node(min(s.specs)))
        if rng.random() < 0.1:
            node = self._node(f"x{step}")
            acts.append(lambda s: s.add_node(node))
        return acts


def decided(scheduler: Scheduler, acts: list[Act], now_s: float, first: str) -> tuple[tuple[Decision, ...], bool]:
    for act in acts:
        act(scheduler)
    decisions = scheduler.decide(first, now_s) if first else ()
    return (*decisions, *scheduler.cycle(now_s)), scheduler.state.unsettled


def check(seed: int) -> int:
    """Run one world with both implementations and compare their decisions; return the number of evictions."""
    world, evictions = World(seed), 0
    fast, plain = world.scheduler(), world.scheduler()
    for step in range(STEPS):
        acts = world.events(step)
        first = world.rng.choice(world.live) if world.rng.random() < 0.3 else ""
        with patch("calabash.sched.cycle.Eviction", PlainEviction):
            wanted = decided(plain, acts, world.now_s, first)
        assert decided(fast, acts, world.now_s, first) == wanted, f"seed {seed}, step {step}"
        evictions += sum(isinstance(decision, Evict) for decision in wanted[0])
    return evictions


@pytest.mark.parametrize("part", range(PARTS))
def test_evictions_equal_those_of_the_plain_search(part: int) -> None:
    count = examples(80) // PARTS
    assert sum(check(seed) for seed in range(part * count, (part + 1) * count)) > count


def test_plain_evictions_have_the_same_methods() -> None:
    names = [name for name in vars(Eviction) if not name.startswith("_")]
    assert names == [name for name in vars(PlainEviction) if not name.startswith("_")]
