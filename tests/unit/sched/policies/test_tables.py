"""Tests of the tables learned from demand: prices of gaps, CPU balance, blocks and scarce models."""

from __future__ import annotations

import numpy as np
import pytest

from calabash.sched.cluster.arrays import Cluster
from calabash.sched.cluster.demand import TYPICAL_MAX, Demand
from calabash.sched.cluster.shape import WHOLE_MILLI, Shape
from calabash.sched.cluster.spec import GpuSpec, NodeSpec
from calabash.sched.policies.tables import (
    BLOCKS_MAX,
    HOST_BLOCKS_MAX,
    _grouped,
    learn,
    maximal_patterns,
    neutral,
)


def share(milli: int, cpu_milli: int = 1000) -> Shape:
    """Return a slice of one card."""
    return Shape(cpu_milli=cpu_milli, gpu_count=1, gpu_milli=milli)


WHOLE = share(WHOLE_MILLI, 8000)
NODES = [
    NodeSpec(name=f"n{i}", cpu_milli=96_000, memory_mib=1 << 18, gpus=(GpuSpec(model="G2"),) * 8) for i in range(10)
]


def test_slice_that_no_other_slice_fits_beside_is_priced_as_a_whole_card() -> None:
    tables = learn(Demand({share(810): 50, WHOLE: 50}), Cluster(NODES))
    assert tables.gap_value[WHOLE_MILLI] - tables.gap_value[190] == pytest.approx(tables.gap_value[WHOLE_MILLI])
    assert tables.gap_value[810] == pytest.approx(tables.gap_value[WHOLE_MILLI])
    assert tables.fluid_limit == pytest.approx((0.81 * 50 + 50) / 100)


def test_two_slices_that_fill_a_card_are_priced_half_a_card_each() -> None:
    tables = learn(Demand({share(500): 80, WHOLE: 20}), Cluster(NODES))
    assert tables.gap_value[500] == pytest.approx(tables.gap_value[WHOLE_MILLI] / 2)
    assert tables.gap_value[499] == 0
    assert tables.fluid_limit == pytest.approx(1.0)


def test_gap_values_never_fall_as_the_gap_grows() -> None:
    rng = np.random.default_rng(4)
    for _ in range(5):
        sizes = rng.choice(np.arange(50, 1000, 10), 8, replace=False).tolist()
        demand = Demand({share(int(size)): int(rng.integers(1, 40)) for size in sizes} | {WHOLE: 30})
        value = learn(demand, Cluster(NODES)).gap_value
        assert len(value) == WHOLE_MILLI + 1
        assert value[0] == 0
        assert (np.diff(value) >= -1e-12).all()
        assert value[WHOLE_MILLI] <= 1.0 + 1e-9


def test_demand_with_too_many_sizes_for_enumeration_is_learned() -> None:
    demand = Demand({share(milli): 1 for milli in range(10, 1000, 7)})
    value = learn(demand, Cluster(NODES)).gap_value
    assert value[WHOLE_MILLI] > 0


def test_the_share_of_demand_that_cpu_can_feed_rises_to_all_of_it() -> None:
    fed = learn(Demand({share(WHOLE_MILLI, 4000): 1, share(WHOLE_MILLI, 20_000): 1}), Cluster(NODES)).fed_share
    assert fed[0] == 0
    assert (np.diff(fed) >= 0).all()
    assert fed[-1] == pytest.approx(1.0)


def test_model_with_more_demand_than_supply_has_scarcity_one() -> None:
    picky = Shape(gpu_count=1, gpu_milli=WHOLE_MILLI, models=frozenset({"T4"}))
    nodes = [*NODES, NodeSpec(name="t", cpu_milli=9, memory_mib=9, gpus=(GpuSpec(model="T4"),) * 2)]
    scarcity = learn(Demand({picky: 50, WHOLE: 50}), Cluster(nodes)).scarcity
    assert scarcity["T4"] == 1.0
    assert scarcity.get("G2", 0.0) == 0.0


def test_without_demand_a_gap_is_worth_its_size() -> None:
    tables = learn(Demand(), Cluster(NODES))
    assert np.array_equal(tables.gap_value, neutral().gap_value)


def test_patterns_are_full_and_distinct() -> None:
    sizes = [650, 470, 320, 110]
    patterns = maximal_patterns(sizes)
    assert len(set(patterns)) == len(patterns)
    for pattern in patterns:
        used = sum(count * size for count, size in zip(pattern, sizes, strict=True))
        assert 0 <= WHOLE_MILLI - used < min(sizes)


def test_distance_of_demands_is_zero_for_the_same_mix_and_one_for_disjoint_shapes() -> None:
    one, other = Demand({share(500): 10, WHOLE: 5}), Demand({share(500): 20, WHOLE: 10})
    assert one.distance(other) == pytest.approx(0.0)
    assert one.distance(Demand({share(300): 3})) == pytest.approx(1.0)


def test_typical_demand_covers_95_percent_and_adds_up_to_one() -> None:
    demand = Demand({share(500): 900, WHOLE: 80, share(111): 20})
    typical = demand.typical()
    assert sum(weight for _, weight in typical) == pytest.approx(1.0)
    assert [key[1] for key, _ in typical] == [500, WHOLE_MILLI]


def test_tables_of_thousands_of_shapes_are_bounded_and_keep_their_total_weight() -> None:
    """Use thousands of different amounts of CPU, which tenants may request, and for each of which a table could have a row."""
    several = {Shape(gpu_count=2 + i % 7, gpu_milli=WHOLE_MILLI, cpu_milli=1 + 7 * i): 1 + i % 3 for i in range(4000)}
    hosts = {Shape(cpu_milli=1 + i): 1 for i in range(4000)}
    demand = Demand({**several, **hosts})
    tables = learn(demand, Cluster(NODES))
    assert 32 <= len(tables.blocks) <= BLOCKS_MAX
    assert 16 <= len(tables.host_blocks) <= HOST_BLOCKS_MAX
    assert len(demand.typical()) == TYPICAL_MAX
    total = sum(shape.gpu_count * count for shape, count in several.items())
    for devices in range(2, 9):
        weight = sum(shape.gpu_count * n for shape, n in several.items() if shape.gpu_count == devices)
        learned = sum(weight for count, _, weight in tables.blocks if count == devices)
        assert learned == pytest.approx(weight / total * devices)
    assert max(cpu for _, cpu, _ in tables.blocks) == max(shape.cpu_milli for shape in several)
    alone = learn(Demand({WHOLE: 1, **hosts}), Cluster(NODES)).host_blocks
    few = learn(Demand({WHOLE: 1, Shape(cpu_milli=2000): 4000}), Cluster(NODES)).host_blocks
    assert (sum(w for _, w in alone) > 0) == (sum(w for _, w in few) > 0)


@pytest.mark.parametrize("count", [1, 5, 6, 7, 100])
def test_groups_are_few_and_keep_order_and_weight(count: int) -> None:
    rng = np.random.default_rng(count)
    weights = {int(amount): float(rng.integers(1, 100)) for amount in rng.choice(1000, count, replace=False)}
    groups = _grouped(weights, 6)
    assert len(groups) == count if count <= 6 else 3 <= len(groups) <= 6
    assert [amount for amount, _ in groups] == sorted({amount for amount, _ in groups} & weights.keys())
    assert groups[-1][0] == max(weights)
    assert sum(weight for _, weight in groups) == pytest.approx(sum(weights.values()))
