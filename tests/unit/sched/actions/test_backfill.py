"""Tests of reservation and backfill: backfilled requests never delay the request that has a reservation."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from calabash.sched.actions.estimate import estimated_end_s
from calabash.sched.cluster.shape import NodePlacement, Shape
from calabash.sched.cluster.spec import GpuSpec, NodeSpec
from calabash.sched.decisions import Bind, Options, Request, Running
from calabash.sched.queues.spec import QueueSpec
from calabash.sched.scheduler import Scheduler

NEVER_EVICT = Options(preempt=False, reclaim=False, reclaim_fair_share=False)


def whole(count: int) -> Shape:
    return Shape(gpu_count=count, gpu_milli=1000)


def cluster_of(*devices: int) -> list[NodeSpec]:
    return [
        NodeSpec(name=f"n{i}", cpu_milli=1000, memory_mib=1000, gpus=(GpuSpec(),) * count)
        for i, count in enumerate(devices)
    ]


def check_order(seed: int) -> tuple[int, int]:
    """Simulate one queue in order of submission with backfill and exact run times; return (reservations, overtakers)."""
    rng = random.Random(seed)
    scheduler = Scheduler(
        cluster_of(*(rng.choice((2, 4)) for _ in range(3))), [QueueSpec(name="q")], options=NEVER_EVICT
    )
    shapes = [whole(1), whole(1), whole(2), whole(2), whole(4), Shape(gpu_count=1, gpu_milli=500)]
    requests: dict[str, Request] = {}
    for i in range(rng.randint(8, 20)):
        members = rng.choice((1, 1, 1, 2, 3))
        run_time_s = float(rng.randint(1, 50))
        shape = rng.choice(shapes)
        for m in range(members):
            request = Request(
                id=f"{i}.{m}", shape=shape, queue="q", run_time_s=run_time_s, submitted_at_s=float(i),
                gang=str(i) if members > 1 else "", min_member=members,
            )  # fmt: skip
            requests[request.id] = request
            scheduler.submit(request)
    ends: dict[str, float] = {}
    promised: dict[str, float] = {}
    overtakers = 0
    now_s = 100.0
    while True:
        started = [d.id for d in scheduler.cycle(now_s) if isinstance(d, Bind)]
        for name in started:
            ends[name] = now_s + (requests[name].run_time_s or 0.0)
            assert now_s <= promised.get(name, now_s), f"seed {seed}: {name} was promised {promised[name]}, got {now_s}"
        waiting = [a for g in scheduler.registry.gangs.values() for a in g.waiting.values()]
        if waiting:
            first = min(a.submitted_at_s for a in waiting)
            overtakers += sum(requests[name].submitted_at_s > first for name in started)
        for reservation in scheduler.state.reservations:
            for request in (a for group in reservation.requests_on.values() for a in group):
                # A reservation may be renewed for an earlier start, never for a later one.
                assert reservation.start_s <= promised.get(request.id, reservation.start_s)
                promised[request.id] = reservation.start_s
        if not ends:
            break
        now_s = min(ends.values())
        for name in [n for n, end_s in ends.items() if end_s <= now_s]:
            scheduler.finished(name)
            del ends[name]
    return len(promised), overtakers


def test_backfilled_requests_never_delay_the_reserved_request() -> None:
    count = examples(150)
    outcomes = [check_order(seed) for seed in range(count)]
    assert sum(promises for promises, _ in outcomes) > count
    assert sum(overtakers for _, overtakers in outcomes) > count / 3


@given(st.integers(0, 10**9))
@settings(max_examples=examples(40), deadline=None)
def test_backfilled_requests_never_delay_the_reserved_request_for_any_queue(seed: int) -> None:
    check_order(seed)


def test_large_gang_does_not_starve_behind_a_stream_of_small_requests() -> None:
    scheduler = Scheduler(cluster_of(4), [QueueSpec(name="q")], options=NEVER_EVICT)
    scheduler.submit(Request(id="s0", shape=whole(1), queue="q", run_time_s=10.0, submitted_at_s=0.0))
    scheduler.cycle(0.0)
    scheduler.submit(Request(id="big", shape=whole(4), queue="q", run_time_s=10.0, submitted_at_s=1.0))
    ends = {"s0": 10.0}
    started_at_s = None
    for second in range(2, 60):
        now_s = float(second)
        for name in [n for n, end_s in ends.items() if end_s <= now_s]:
            scheduler.finished(name)
            del ends[name]
        scheduler.submit(Request(id=f"t{second}", shape=whole(1), queue="q", run_time_s=9.0, submitted_at_s=now_s))
        for d in scheduler.cycle(now_s):
            if isinstance(d, Bind):
                ends[d.id] = now_s + (10.0 if d.id == "big" else 9.0)
                started_at_s = now_s if d.id == "big" else started_at_s
    assert started_at_s == 10.0


def test_exceeded_run_time_estimate_is_extended_into_the_future() -> None:
    request = Request(id="a", shape=whole(1), queue="q", run_time_s=100.0)
    running = Running(request=request, placement=NodePlacement(node=0), node="n0", started_at_s=0.0)
    assert estimated_end_s(running, 50.0, 1000.0) == 100.0
    assert estimated_end_s(running, 100.0, 1000.0) > 100.0
    assert 5000.0 < estimated_end_s(running, 5000.0, 1000.0) < 6000.0
    unknown = Running(
        request=Request(id="b", shape=whole(1), queue="q"), placement=NodePlacement(node=0), node="n0", started_at_s=0.0
    )
    assert estimated_end_s(unknown, 50.0, 1000.0) == 1000.0


@settings(max_examples=examples(200))
@given(
    run_time_s=st.floats(0.01, 1e6),
    began_s=st.floats(0.0, 2e9),
    elapsed=st.lists(st.floats(0.0, 100.0), min_size=2, max_size=8),
)
def test_estimated_end_is_constant_until_it_has_passed(run_time_s: float, began_s: float, elapsed: list[float]) -> None:
    request = Request(id="x", shape=whole(1), queue="q", run_time_s=run_time_s)
    running = Running(request=request, placement=NodePlacement(node=0), node="n0", started_at_s=began_s)
    end_s = began_s
    for now_s in sorted(began_s + part * run_time_s for part in elapsed):
        found_s = estimated_end_s(running, now_s, 1000.0)
        if now_s < end_s:
            assert found_s == end_s
        else:
            assert now_s < found_s
            assert found_s - began_s <= max(run_time_s, 1.1 * (now_s - began_s), now_s - began_s + 2.0) + 1e-5
        end_s = found_s


def test_backfilled_request_gets_the_device_of_a_held_node_where_it_delays_no_reservation() -> None:
    """Use a cluster whose best placement would be the device for which the reserved request waits."""
    node = NodeSpec(
        name="n",
        cpu_milli=1000,
        memory_mib=1000,
        gpus=(GpuSpec(model="L4", memory_mib=24_000), GpuSpec(model="T4", memory_mib=16_000)),
    )
    scheduler = Scheduler([node], [QueueSpec(name="q")], options=NEVER_EVICT)
    for name, device, milli in (("r", 0, 500), ("s", 1, 100)):
        request = Request(id=name, shape=Shape(gpu_count=1, gpu_milli=milli), queue="q", run_time_s=100.0)
        scheduler.adopt(request, placement=NodePlacement(node=0, devices=(device,)), started_at_s=0.0)
    promised = Shape(gpu_count=1, gpu_milli=1000, models=frozenset({"L4"}))
    scheduler.submit(Request(id="promised", shape=promised, queue="q", run_time_s=10.0))
    scheduler.submit(Request(id="late", shape=Shape(gpu_count=1, gpu_milli=300), queue="q", submitted_at_s=1.0))
    assert [(d.id, d.placement.devices) for d in scheduler.cycle(1.0) if isinstance(d, Bind)] == [("late", (1,))]
    assert [r.request_ids for r in scheduler.state.reservations] == [("promised",)]


def test_held_nodes_are_schedulable_again_after_the_cycle() -> None:
    scheduler = Scheduler(cluster_of(4, 4), [QueueSpec(name="q")], options=NEVER_EVICT)
    for i in range(2):
        scheduler.adopt(Request(id=f"r{i}", shape=whole(3), queue="q", run_time_s=50.0 + i), started_at_s=0.0)
    scheduler.submit(Request(id="big", shape=whole(4), queue="q", submitted_at_s=1.0))
    scheduler.cycle(2.0)
    assert scheduler.state.reservations
    assert scheduler.cluster.schedulable.all()
    assert scheduler.explain("big", 2.0).estimated_start_s == pytest.approx(50.0)
    assert scheduler.cluster.schedulable.all()
