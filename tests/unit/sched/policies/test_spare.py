"""Tests of spare CPU: its value when CPU, and not the devices, is the scarce resource."""

from __future__ import annotations

from itertools import product

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
from calabash.sched.policies.spare import STEP_MILLI, cpu_pressure, learn_spare, usable
from calabash.sim import generate
from calabash.sim.arrivals import simulate
from calabash.sim.workload import TraceRequest, Workload

HEAVY = Shape(cpu_milli=11_000, memory_mib=40_000, gpu_count=1, gpu_milli=WHOLE_MILLI)
LIGHT = Shape(cpu_milli=3_000, memory_mib=6_000, gpu_count=1, gpu_milli=WHOLE_MILLI)
SMALL = Shape(cpu_milli=8_000, memory_mib=16_000)
MIDDLE = Shape(cpu_milli=12_500, memory_mib=25_000)
UNPRICED = PgbWeights(spare=0.0)
# Two nodes of 8 cards and 96 vCPU. The demand for 16 cards needs 160 vCPU, and requests without devices need 40 more.
DEMAND = Demand({HEAVY: 12, LIGHT: 4, SMALL: 4, MIDDLE: 2})


def node(name: str, cpu_milli: int, gpus: int = 8, memory_mib: int = 400_000) -> NodeSpec:
    """Return a node of equal cards."""
    return NodeSpec(name=name, cpu_milli=cpu_milli, memory_mib=memory_mib, gpus=(GpuSpec(model="G2"),) * gpus)


def scarce(workload: Workload, times: int) -> Workload:
    """Return a workload with its requests without devices ``times`` over."""
    more = [
        TraceRequest(name=f"{request.name}.{copy}", shape=request.shape)
        for request in workload.requests
        if not request.shape.gpu_count
        for copy in range(1, times)
    ]
    return Workload(name=f"{workload.name}-scarce", requests=(*workload.requests, *more))


@settings(max_examples=examples(40), deadline=None)
@given(sizes=st.lists(st.integers(3, 60), min_size=1, max_size=3, unique=True), most=st.integers(0, 90))
def test_usable_is_the_largest_sum_of_sizes_that_a_gap_holds(sizes: list[int], most: int) -> None:
    found = usable([size * STEP_MILLI for size in sizes], most * STEP_MILLI)
    sums = {
        sum(count * size for count, size in zip(counts, sizes, strict=True))
        for counts in product(*(range(most // size + 1) for size in sizes))
    }
    assert found.tolist() == [max(s for s in sums if s <= gap) * STEP_MILLI for gap in range(most + 1)]


def test_size_between_two_steps_is_rounded_up() -> None:
    assert usable([8_050], 16_200)[[80, 81, 161, 162]].tolist() == [0, 8_100, 8_100, 16_200]


def test_spare_cpu_has_a_value_only_if_cpu_is_scarce() -> None:
    plenty = Cluster([node("a", 128_000), node("b", 128_000)])
    tight = Cluster([node("a", 101_000), node("b", 101_000)])
    short = Cluster([node("a", 96_000), node("b", 96_000)])
    assert learn_spare(DEMAND, plenty) is None
    found = [learn_spare(DEMAND, cluster) for cluster in (tight, short)]
    assert [spare is not None and round(spare.strength, 2) for spare in found] == [0.63, 1.0]
    assert cpu_pressure(DEMAND, short) == (12 * 11 + 4 * 3 + 4 * 8 + 2 * 12.5) / 192
    assert learn_spare(Demand({HEAVY: 12, LIGHT: 4}), Cluster([node("a", 40_000)])) is None


def test_learned_parameters_are_the_need_of_light_requests_and_the_ratio_of_memory_intensive_ones() -> None:
    spare = learn_spare(DEMAND, Cluster([node("a", 96_000), node("b", 96_000)]))
    assert spare is not None
    assert spare.card_cpu_milli == 3_000
    assert spare.card_memory_mib == round((4 * 6_000 + 8 * 40_000) / 12)
    assert spare.milli_per_mib == 0.5
    assert spare.usable_milli[[79, 80, 125, 160, 205]].tolist() == [0, 8_000, 12_500, 16_000, 20_500]


def test_request_without_devices_is_placed_where_the_remaining_cpu_can_be_used() -> None:
    # Both nodes have used cards. Taking 12.5 of 20.5 vCPU leaves 8, which a request fits; of 17 it would leave 4.5.
    cluster = Cluster([node("sliver", 17_000, 1), node("exact", 20_500, 1)], order_seed=None)
    for row in (0, 1):
        cluster.place(Shape(gpu_count=1, gpu_milli=WHOLE_MILLI), NodePlacement(node=row, devices=(0,)))
    # Learned on a cluster of this size, on which CPU is short.
    placement = Engine(cluster, PgbPolicy(demand=Demand({**DEMAND.counts, SMALL: 40}))).decide(MIDDLE)
    assert placement is not None
    assert cluster.names[placement.node] == "exact"


def test_a_request_without_devices_leaves_free_cards_their_cpu() -> None:
    nodes = [node("free", 12_500, 1), node("spent", 12_500, 1)]
    cluster = Cluster(nodes, order_seed=None)
    cluster.place(Shape(gpu_count=1, gpu_milli=WHOLE_MILLI), NodePlacement(node=1, devices=(0,)))
    placement = Engine(cluster, PgbPolicy(demand=Demand({**DEMAND.counts, SMALL: 40}))).decide(MIDDLE)
    assert placement is not None
    assert cluster.names[placement.node] == "spent"


def test_host_memory_limits_spare_cpu_if_it_is_scarcer() -> None:
    spare = learn_spare(DEMAND, Cluster([node("a", 96_000), node("b", 96_000)]))
    assert spare is not None
    cpu, memory, total = np.array([30_000, 30_000]), np.array([200_000, 20_000]), np.array([0, 0])
    assert spare.amount_milli(cpu, memory, total).tolist() == [30_000, 10_000]
    assert spare.amount_milli(cpu, memory, np.array([4_000, 0])).tolist() == [18_000, 10_000]


@settings(max_examples=examples(15), deadline=None)
@given(arrivals=st.lists(st.sampled_from(list(DEMAND.counts)), max_size=60), seed=st.integers(0, 9))
def test_placements_with_valued_cpu_fit_and_are_released_exactly(arrivals: list[Shape], seed: int) -> None:
    cluster = Cluster([node("a", 96_000), node("b", 60_000), node("c", 104_000, 2)], order_seed=seed)
    engine = Engine(cluster, PgbPolicy(demand=Demand({**DEMAND.counts, SMALL: 40})))
    before = [getattr(cluster, name).copy() for name in ("cpu_free_milli", "memory_free_mib", "gpu_free_milli")]
    held = []
    for shape in arrivals:
        placement = engine.decide(shape)
        if placement is None:
            assert not engine.scores(shape).max() > -np.inf
            continue
        cluster.place(shape, placement)
        held.append((shape, placement))
        assert cluster.cpu_free_milli.min() >= 0
        assert cluster.memory_free_mib.min() >= 0
        assert cluster.gpu_free_milli.min() >= 0
    for shape, placement in held:
        cluster.release(shape, placement)
    after = [getattr(cluster, name) for name in ("cpu_free_milli", "memory_free_mib", "gpu_free_milli")]
    assert all(np.array_equal(one, other) for one, other in zip(before, after, strict=True))


def test_plentiful_cpu_changes_no_decision() -> None:
    nodes, workload = generate.cluster(40, seed=1), generate.workload(400, seed=1)
    assert cpu_pressure(workload.demand, Cluster(nodes)) < 0.97
    priced = simulate(nodes, workload, PgbPolicy(demand=workload.demand), 3)
    plain = simulate(nodes, workload, PgbPolicy(demand=workload.demand, weights=UNPRICED), 3)
    assert priced.curve == plain.curve
    assert priced.cpu_only_admitted_ratio == plain.cpu_only_admitted_ratio


def test_value_of_scarce_cpu_allocates_more_devices_and_refuses_no_more_other_requests() -> None:
    nodes, plain = generate.cluster(100, seed=1), generate.workload(700, seed=1)
    workload = scarce(plain, 4)
    assert cpu_pressure(workload.demand, Cluster(nodes)) > 1.0
    found = [
        [simulate(nodes, workload, PgbPolicy(demand=workload.demand, weights=w), seed) for seed in (1, 2)]
        for w in (PgbWeights(), UNPRICED)
    ]
    given_out, admitted = (
        [sum(getattr(run, name) for run in runs) for runs in found]
        for name in ("allocation_ratio_end", "cpu_only_admitted_ratio")
    )
    assert given_out[0] > given_out[1]
    assert admitted[0] >= admitted[1]


def test_preference_text_says_that_cpu_is_short() -> None:
    demand = Demand({**DEMAND.counts, SMALL: 40})
    engine = Engine(Cluster([node("a", 96_000), node("b", 96_000)]), PgbPolicy(demand=demand))
    assert engine.preference == (
        "pgb (CPU is short, 255 % of it requested: 3.0 vCPU are kept per free card, "
        "the rest counts by the requests that fit into it)"
    )
    plenty = Engine(Cluster([node("a", 960_000), node("b", 960_000)]), PgbPolicy(demand=demand))
    assert plenty.preference == "pgb"


def test_learning_policy_values_cpu_once_enough_requests_have_arrived() -> None:
    """Change only the requests without devices: the mix by devices stays nearly equal, and so do the other tables."""
    engine = Engine(Cluster([node("a", 96_000), node("b", 96_000)]), PgbPolicy())
    plenty = [HEAVY] * 130 + [LIGHT] * 70
    for shape in plenty:
        engine.observe(shape)
    assert engine.preference == "pgb"
    for shape in plenty + [MIDDLE] * 200:
        engine.observe(shape)
    assert engine.preference.startswith("pgb (CPU is short, ")
    for shape in plenty * 10:
        engine.observe(shape)
    assert engine.preference == "pgb"
