"""Property tests of evictions in small random worlds: bounded, without loops, none of units in quota, nothing over-committed.

One case is one random world that is scheduled until nothing changes. The default run has five thousand cases, in parts that can
run in parallel. ``CALABASH_CASES=1000000 pytest -m slow tests/unit/sched/actions/test_preempt_properties.py`` runs a million
(``CALABASH_SEED`` sets the first case, so that it can be run in parts).
"""

from __future__ import annotations

import itertools
import os
import random
from collections import defaultdict
from dataclasses import replace

import pytest
from tests.examples import examples

from calabash.sched.actions.victims import VictimRules
from calabash.sched.amounts import Amount
from calabash.sched.cluster.shape import Shape
from calabash.sched.cluster.spec import GpuSpec, NodeSpec
from calabash.sched.decisions import Bind, Evict, Options, Request
from calabash.sched.queues.spec import UNLIMITED, QueueSpec
from calabash.sched.scheduler import Scheduler

DEFAULT_CASES = examples(5000)
PARTS = 4
CYCLES_MAX = 40
SHAPES = [
    *[Shape(gpu_count=n, gpu_milli=1000) for n in (1, 1, 1, 2, 2, 4)],
    *[Shape(gpu_count=1, gpu_milli=m) for m in (250, 500, 800)],
]


def world(rng: random.Random) -> tuple[Scheduler, list[Request]]:
    """A few nodes, two or three queues, running and waiting requests."""
    nodes = [
        NodeSpec(name=f"n{i}", cpu_milli=1 << 30, memory_mib=1 << 30, gpus=(GpuSpec(),) * rng.choice((1, 2, 4)))
        for i in range(rng.randint(1, 3))
    ]
    total = sum(len(n.gpus) for n in nodes)
    names = ["a", "b", "c"][: rng.randint(1, 3)]
    managed = rng.random() < 0.7
    queues = [
        QueueSpec(
            name=name,
            deserved=Amount(rng.randint(0, total) * 1000 if managed else 0),
            over_quota_weight=rng.choice((0.0, 1.0, 1.0, 2.0)),
        )
        for name in names
    ]
    if rng.random() < 0.3:
        limit = max(queues[0].deserved.gpu_milli, rng.randint(1, total) * 1000)
        queues[0] = replace(queues[0], limit=UNLIMITED._replace(gpu_milli=limit))
    scheduler = Scheduler(nodes, queues, options=Options(reclaim_fair_share=rng.random() < 0.7))
    number = itertools.count()

    def requests(*, many: int) -> list[Request]:
        made: list[Request] = []
        for _ in range(many):
            queue, shape, priority = rng.choice(names), rng.choice(SHAPES), rng.choice((0, 0, 1, 2))
            members = rng.choice((1, 1, 1, 2, 3))
            name = f"{queue}{next(number)}"
            made.extend(
                Request(
                    id=f"{name}.{m}", shape=shape, queue=queue, priority=priority,
                    gang=name if members > 1 else "", min_member=rng.randint(1, members) if m == 0 else 1,
                    submitted_at_s=rng.randint(0, 50),
                )
                for m in range(members)
            )  # fmt: skip
        return made

    for request in requests(many=rng.randint(2, 8)):
        scheduler.submit(request)
    scheduler.cycle(100.0)
    return scheduler, requests(many=rng.randint(1, 3))


def assert_state_is_consistent(scheduler: Scheduler) -> None:
    """Check that the arrays and the use of queues agree with the running requests, and that gangs run whole or not at all."""
    cluster = scheduler.cluster
    used = [[0] * cluster.width for _ in cluster.names]
    charged: dict[str, float] = defaultdict(float)
    for gang in scheduler.registry.gangs.values():
        assert not gang.running or len(gang.running) >= gang.min_member
        for running in gang.running.values():
            charged[gang.queue] += running.charge.gpu_milli
            for device in running.placement.devices:
                used[running.placement.node][device] += running.request.shape.gpu_milli
    for row, devices in enumerate(used):
        for device, milli in enumerate(devices[: int(cluster.gpu_count[row])]):
            assert milli <= 1000
            assert int(cluster.gpu_free_milli[row, device]) == 1000 - milli
    for queue in scheduler.tree.form.leaves:
        assert scheduler.tree.used(queue).gpu_milli == charged[queue]
    for spec in scheduler.tree.form.specs:
        assert scheduler.tree.used(spec.name).gpu_milli <= spec.limit.gpu_milli
    assert all(bool(s) for s in cluster.schedulable)


def check_world(seed: int) -> int:
    """Run one world to its end; return the number of evictions."""
    rng = random.Random(seed)
    scheduler, newcomers = world(rng)
    assert_state_is_consistent(scheduler)
    for request in newcomers:
        scheduler.submit(request)
    evictions = 0
    for cycle in range(CYCLES_MAX):
        now_s = 200.0
        rules = VictimRules(scheduler.state)
        in_quota = {
            m.request.id: (u.queue, u.priority)
            for q in scheduler.tree.form.leaves
            for u in rules.units(q)
            if u.in_quota
            for m in u.members
        }
        decisions = scheduler.cycle(now_s)
        assert_state_is_consistent(scheduler)
        evicted = [d for d in decisions if isinstance(d, Evict)]
        bound = {d.id for d in decisions if isinstance(d, Bind)}
        evictions += len(evicted)
        assert not bound & {d.id for d in evicted}, f"seed {seed}: started and evicted in one cycle"
        for eviction in evicted:
            by = scheduler.registry.request(eviction.by)
            assert eviction.by in bound, f"seed {seed}: {eviction} for somebody who did not start"
            if eviction.id in in_quota:
                queue, priority = in_quota[eviction.id]
                started = map(scheduler.registry.request, bound)
                if any(a.queue == queue and a.priority >= priority for a in started):
                    continue  # an earlier start of at least its priority has displaced it from quota
                assert queue == by.queue, f"seed {seed}: {eviction} takes what is in quota"
                assert priority < by.priority, f"seed {seed}: {eviction} is no higher priority"
        assert_bounded(scheduler, decisions, seed)
        if not evicted and not bound:
            return evictions
        assert cycle < CYCLES_MAX - 1, f"seed {seed}: evictions never end"
    return evictions


def assert_bounded(scheduler: Scheduler, decisions: object, seed: int) -> None:
    """Check that each requester evicted at most 1.2 times its request, or is in quota."""
    evicted: dict[str, float] = defaultdict(float)
    asked: dict[str, float] = defaultdict(float)
    for d in decisions:  # type: ignore[attr-defined]
        if isinstance(d, Evict):
            evicted[d.by] += scheduler.state.charges.charge(scheduler.registry.request(d.id).shape).gpu_milli
        elif isinstance(d, Bind):
            asked[d.id] += scheduler.state.charges.charge(scheduler.registry.request(d.id).shape).gpu_milli
    for requester, milli in evicted.items():
        gang = scheduler.registry.gang_of(requester)
        together = sum(asked[i] for i in (*gang.running, *gang.waiting) if i in asked)
        if milli > 1.2 * together:
            rules = VictimRules(scheduler.state)
            mine = [u for u in rules.units(gang.queue) if u.gang == gang.key]
            assert any(u.in_quota for u in mine), f"seed {seed}: borrowed placer for {together} cost {milli}"


def run_cases(count: int, start: int) -> int:
    return sum(check_world(seed) for seed in range(start, start + count))


@pytest.mark.parametrize("part", range(PARTS))
def test_evictions_of_random_worlds_end_and_keep_the_state_consistent(part: int) -> None:
    count = DEFAULT_CASES // PARTS
    assert run_cases(count, part * count) > count // 20


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_evictions_of_a_million_random_worlds_end() -> None:
    count = int(os.environ.get("CALABASH_CASES", str(examples(500))))
    start = int(os.environ.get("CALABASH_SEED", "100000"))
    assert run_cases(count, start) > 0
