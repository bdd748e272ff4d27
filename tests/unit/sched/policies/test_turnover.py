"""Tests of turnover: whether a cluster fills, and that spare CPU has a value only then."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from calabash.sched.cluster.arrays import Cluster
from calabash.sched.cluster.demand import Demand
from calabash.sched.cluster.engine import Engine
from calabash.sched.cluster.shape import WHOLE_MILLI, NodePlacement, Shape
from calabash.sched.cluster.spec import GpuSpec, NodeSpec
from calabash.sched.policies.pgb import PgbPolicy, PgbWeights
from calabash.sched.policies.turnover import GIVEN_BACK_MAX, SAMPLE_ARRIVALS, Turnover

CARD = Shape(cpu_milli=6_000, memory_mib=8_000, gpu_count=1, gpu_milli=WHOLE_MILLI)
SMALL = Shape(cpu_milli=8_000, memory_mib=16_000)
MIDDLE = Shape(cpu_milli=12_500, memory_mib=25_000)
DEMAND = Demand({CARD: 4, SMALL: 6, MIDDLE: 3})
SHAPES = tuple(DEMAND.counts)


def cluster_of(nodes: int) -> Cluster:
    """Return nodes on which CPU runs out before the cards."""
    made = [
        NodeSpec(name=f"n{at}", cpu_milli=96_000, memory_mib=400_000, gpus=(GpuSpec(model="G2"),) * 4)
        for at in range(nodes)
    ]
    return Cluster(made, order_seed=None)


def take_sample(turnover: Turnover) -> None:
    """Report as many arrivals as cause one sample."""
    for _ in range(SAMPLE_ARRIVALS):
        turnover.arrived()


def observe_sample(engine: Engine) -> None:
    """Observe as many arrivals as cause the policy to take one sample."""
    for _ in range(SAMPLE_ARRIVALS):
        engine.observe(SMALL)


def test_cluster_without_departures_fills_and_one_with_equal_departures_does_not() -> None:
    cluster = cluster_of(4)
    turnover = Turnover(cluster)
    take_sample(turnover)
    assert turnover.fills
    for row in (0, 1, 2):
        cluster.place(SMALL, NodePlacement(node=row, devices=()))
        take_sample(turnover)
        assert turnover.fills
    cluster.release(SMALL, NodePlacement(node=0, devices=()))
    cluster.place(SMALL, NodePlacement(node=3, devices=()))
    take_sample(turnover)
    assert not turnover.fills


def test_what_if_placements_between_two_samples_have_no_effect() -> None:
    cluster = cluster_of(2)
    turnover = Turnover(cluster)
    cluster.place(MIDDLE, NodePlacement(node=0, devices=()))
    take_sample(turnover)
    for _ in range(50):
        cluster.place(SMALL, NodePlacement(node=1, devices=()))
        cluster.release(SMALL, NodePlacement(node=1, devices=()))
        take_sample(turnover)
    assert turnover.fills


def test_emptied_cluster_fills_again_once_enough_cpu_was_taken() -> None:
    cluster = cluster_of(8)
    turnover = Turnover(cluster)
    places = [NodePlacement(node=row, devices=()) for row in range(8) for _ in range(12)]
    for place in places:
        cluster.place(SMALL, place)
    take_sample(turnover)
    assert turnover.fills
    for place in places:
        cluster.release(SMALL, place)
    take_sample(turnover)
    assert not turnover.fills
    for _ in range(8):  # samples while it fills: CPU that was given back long ago no longer counts
        for row in range(8):
            cluster.place(SMALL, NodePlacement(node=row, devices=()))
        take_sample(turnover)
    assert not turnover.fills
    for _ in range(40):
        joined = f"late{cluster.node_count}"
        row = cluster.add_node(NodeSpec(name=joined, cpu_milli=96_000, memory_mib=400_000))
        take_sample(turnover)  # free CPU of an added node was not given back
        for _ in range(12):
            cluster.place(SMALL, NodePlacement(node=row, devices=()))
        take_sample(turnover)
    assert turnover.fills


@settings(max_examples=examples(60), deadline=None)
@given(steps=st.lists(st.tuples(st.booleans(), st.integers(0, 5)), max_size=60))
def test_cluster_fills_exactly_if_little_of_the_taken_cpu_was_given_back(steps: list[tuple[bool, int]]) -> None:
    """Make one change between two samples, and less than the CPU of the cluster in all, so that all changes count."""
    cluster = cluster_of(6)
    capacity = int(cluster.cpu_milli.sum())
    turnover = Turnover(cluster)
    held: list[int] = []
    taken = back = 0
    for arrives, at in steps:
        if taken + back + 1_000 > capacity:
            break
        if arrives:
            cluster.place(Shape(cpu_milli=1_000), NodePlacement(node=at, devices=()))
            held.append(at)
            taken += 1_000
        elif held:
            cluster.release(Shape(cpu_milli=1_000), NodePlacement(node=held.pop(at % len(held)), devices=()))
            back += 1_000
        take_sample(turnover)
        assert turnover.fills == (back <= GIVEN_BACK_MAX * taken)


@settings(max_examples=examples(10), deadline=None)
@given(
    arrivals=st.lists(st.sampled_from(SHAPES), min_size=20, max_size=40),
    after=st.lists(st.sampled_from(SHAPES), max_size=12),
    kept=st.integers(1, 6),
)
def test_departures_disable_the_value_of_spare_cpu(arrivals: list[Shape], after: list[Shape], kept: int) -> None:
    cluster = cluster_of(4)
    priced = Engine(cluster, PgbPolicy(demand=DEMAND))
    plain = Engine(cluster, PgbPolicy(demand=DEMAND, weights=PgbWeights(spare=0.0)))
    assert priced.preference.startswith("pgb (CPU is short, ")
    held: list[tuple[Shape, NodePlacement]] = []
    for shape in arrivals:
        placement = priced.decide(shape)
        assert placement is not None
        cluster.place(shape, placement)
        held.append((shape, placement))
        observe_sample(priced)
        if len(held) > kept:
            cluster.release(*held.pop(0))
            observe_sample(priced)
    assert priced.preference == "pgb"
    for shape in after:
        assert all(np.array_equal(priced.scores(each), plain.scores(each)) for each in SHAPES)
        placement = plain.best(shape)
        if placement is not None:
            cluster.place(shape, placement)


def test_spare_cpu_keeps_its_value_while_the_cluster_fills() -> None:
    cluster = cluster_of(4)
    engine = Engine(cluster, PgbPolicy(demand=DEMAND))
    began = engine.preference
    assert began.startswith("pgb (CPU is short, ")
    for shape in SHAPES * 80:
        placement = engine.decide(shape)
        if placement is not None:
            cluster.place(shape, placement)
    assert engine.decide(SMALL) is None
    assert engine.preference == began
