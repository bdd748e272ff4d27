"""Tests of policies against their definitions, computed by hand or written again without optimisations."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.unit.sched.explain.test_explain import random_cluster, random_shape

from calabash.model.errors import CalabashError
from calabash.sched.cluster.arrays import Cluster
from calabash.sched.cluster.demand import Demand
from calabash.sched.cluster.engine import Engine
from calabash.sched.cluster.fit import CompiledShape
from calabash.sched.cluster.scoring import PlacementPolicy
from calabash.sched.cluster.shape import WHOLE_MILLI, NodePlacement, Shape
from calabash.sched.cluster.spec import GpuSpec, NodeSpec
from calabash.sched.policies import pgb as pgb_module
from calabash.sched.policies.fgd import FgdPolicy
from calabash.sched.policies.pgb import PgbWeights
from calabash.sched.policies.registry import NAMES, policy_named
from calabash.sched.policies.spare import STEP_MILLI
from calabash.sched.policies.tables import LORENZ_POINTS, LORENZ_STEP_VCPU, Tables, learn

WHOLE = Shape(cpu_milli=8_000, gpu_count=1, gpu_milli=WHOLE_MILLI)
LARGE = Shape(cpu_milli=64_000, gpu_count=8, gpu_milli=WHOLE_MILLI)
HOST = Shape(cpu_milli=16_000)
DEMANDED = Shape(cpu_milli=4_000, gpu_count=1, gpu_milli=WHOLE_MILLI, models=frozenset({"T4"}))


def part(milli: int, cpu_milli: int = 2_000) -> Shape:
    """Return a slice of one device."""
    return Shape(cpu_milli=cpu_milli, gpu_count=1, gpu_milli=milli)


# In SCARCE, CPU runs out before the devices do.
DEMAND = Demand({WHOLE: 40, LARGE: 2, HOST: 12, DEMANDED: 6, part(810): 20, part(470): 20, part(230): 8, part(110): 4})
SCARCE = Demand({**DEMAND.counts, HOST: 130, Shape(cpu_milli=12_500, memory_mib=60_000): 60})


def node(name: str, gpus: int = 8, cpu_milli: int = 96_000, model: str = "G2") -> NodeSpec:
    """Return a node with plenty of memory."""
    return NodeSpec(name=name, cpu_milli=cpu_milli, memory_mib=1 << 20, gpus=(GpuSpec(model=model),) * gpus)


def cluster_with(*uses: tuple[Shape, int, tuple[int, ...]], nodes: list[NodeSpec]) -> Cluster:
    """Return a cluster of nodes in the given order, with shapes placed on (row, devices)."""
    cluster = Cluster(nodes, order_seed=None)
    for shape, row, devices in uses:
        cluster.place(shape, NodePlacement(node=row, devices=devices))
    return cluster


def goes_to(policy: PlacementPolicy | str, cluster: Cluster, shape: Shape) -> tuple[str, tuple[int, ...]]:
    """Return the name of the chosen node, and the chosen devices."""
    made = policy_named(policy, demand=DEMAND) if isinstance(policy, str) else policy
    placement = Engine(cluster, made).decide(shape)
    assert placement is not None
    return cluster.names[placement.node], placement.devices


# ------------------------------------------------------------------------------------------------ published baselines
def decided_on(engine: Engine, shape: Shape, row: int) -> NodePlacement | None:
    """Return the placement of a shape if every other node is cordoned."""
    others = [other for other in range(engine.cluster.node_count) if other != row]
    for other in others:
        engine.cluster.cordon(other)
    placement = engine.decide(shape)
    for other in others:
        engine.cluster.cordon(other, schedulable=True)
    return placement


def test_bestfit_takes_the_node_with_the_least_left() -> None:
    cluster = cluster_with((WHOLE, 1, (0,)), nodes=[node("a"), node("b"), node("c", 8, 128_000)])
    assert goes_to("bestfit", cluster, WHOLE) == ("b", (1,))
    # 100 * (1 - (87/128 + 6/8) / 2), truncated
    assert Engine(cluster, policy_named("bestfit")).scores(WHOLE)[1] == math.trunc(
        100 * (1 - ((96 - 16) / 128 + (8 - 2) / 8) / 2)
    )


def test_dotproduct_prefers_the_node_least_aligned_with_the_request() -> None:
    cluster = cluster_with(nodes=[node("a", 8), node("b", 2)])
    assert goes_to("dotproduct", cluster, WHOLE)[0] == "b"


def test_packing_prefers_a_shared_device_then_a_used_node_then_an_empty_one() -> None:
    nodes = [node("empty"), node("used"), node("shared")]
    cluster = cluster_with((WHOLE, 1, (0,)), (part(300), 2, (3,)), nodes=nodes)
    assert goes_to("packing", cluster, part(400)) == ("shared", (3,))
    full = cluster_with((WHOLE, 1, (0,)), (part(900), 2, (3,)), nodes=nodes)
    assert goes_to("packing", full, part(400))[0] in ("used", "shared")
    assert goes_to("packing", full, WHOLE)[0] != "empty"


def test_clustering_prefers_nodes_with_requests_of_the_same_kind() -> None:
    cluster = cluster_with((WHOLE, 0, (0,)), (part(500), 1, (0,)), nodes=[node("cards"), node("shares"), node("empty")])
    assert goes_to("clustering", cluster, part(300))[0] == "shares"
    assert goes_to("clustering", cluster, WHOLE)[0] == "cards"


def test_spread_takes_the_node_and_device_with_most_free() -> None:
    cluster = cluster_with((part(500), 0, (0,)), (part(100), 1, (0,)), nodes=[node("a", 2), node("b", 2)])
    assert goes_to("spread", cluster, part(300)) == ("b", (1,))


def test_random_chooses_among_exactly_the_fitting_nodes() -> None:
    cluster = cluster_with((WHOLE, 0, (0,)), nodes=[node("a", 2), node("b", 1, 1_000), node("c", 1)])
    engine = Engine(cluster, policy_named("random", seed=3))
    found = {(p.node, p.devices) for p in (engine.decide(part(500)) for _ in range(60)) if p is not None}
    assert found == {(0, (1,)), (2, (0,))}


def test_fgd_measures_what_typical_requests_cannot_use() -> None:
    # Typical requests: half for 0.6 of a card, half for a whole one. F of one idle card is 0. With 0.5 in use, no request can
    # use the rest: F = 500. With 0.4 in use the request for 0.6 fits: F is half of 600.
    demand = Demand({part(600): 50, WHOLE: 50})
    cluster = cluster_with(nodes=[node("a", 1)])
    scores = [Engine(cluster, FgdPolicy(demand=demand)).scores(part(milli))[0] for milli in (500, 400)]
    assert scores == [math.trunc(100 / (1 + math.exp(0.5))), math.trunc(100 / (1 + math.exp(0.3)))]
    exact = Engine(cluster, FgdPolicy(demand=demand, quantised=False)).scores(part(500))[0]
    assert exact == pytest.approx(-0.5)


def test_fgd_counts_a_node_without_cpu_as_all_fragment() -> None:
    demand = Demand({part(600): 50})
    cluster = cluster_with(nodes=[node("poor", 1, 8_000), node("rich", 1, 96_000)])
    assert goes_to(FgdPolicy(demand=demand), cluster, Shape(cpu_milli=7_000))[0] == "rich"


# ------------------------------------------------------------------------------------------------ priced gaps
def potential(cluster: Cluster, row: int, tables: Tables, typical: list[tuple[int, int, float]]) -> float:
    """Return the potential by the formula of policies/pgb.py, term by term."""
    weights = PgbWeights()
    gaps = cluster.gpu_free_milli[row].tolist()
    cpu = int(cluster.cpu_free_milli[row])
    cards = sum(gaps) / WHOLE_MILLI
    free = sum(gap == WHOLE_MILLI for gap in gaps)
    value = -sum(tables.gap_value[gap] + weights.square * (gap / WHOLE_MILLI) ** 2 for gap in gaps)
    if cards:
        grid = np.arange(LORENZ_POINTS) * LORENZ_STEP_VCPU
        value += weights.cpu * cards * (1 - float(np.interp(cpu / 1000 / cards, grid, tables.fed_share)))
    for needed, milli, share in typical:
        useless = sum(gap for gap in gaps if not milli or cpu < needed or gap < milli)
        value += weights.fragment * share * useless / WHOLE_MILLI
    block = weights.block + weights.block_scarce * (tables.spare.strength**3 if tables.spare else 0.0)
    for devices, needed, weight in tables.blocks:
        value -= block * weight * min(free // devices, cpu // needed)
    for needed, weight in tables.host_blocks:
        value -= weights.host * weight * min(cpu // needed, 16)
    if tables.spare is not None:
        spare = cpu - tables.spare.card_cpu_milli * cards
        kept = int(cluster.memory_free_mib[row]) - tables.spare.card_memory_mib * cards
        spare = min(spare, kept * tables.spare.milli_per_mib)
        steps = math.floor(spare / STEP_MILLI)
        worth = weights.spare * tables.spare.usable_milli[steps] if steps >= 0 else weights.unfed * steps * STEP_MILLI
        value -= tables.spare.strength * worth / 1000
    model = next(name for name, code in cluster.models.items() if code == cluster.gpu_model[row, 0])
    return float(value - weights.model * tables.scarcity.get(model, 0.0) * cards)


SHAPES = (*DEMAND.counts, part(650), part(90))


@settings(max_examples=examples(25), deadline=None)
@given(
    history=st.lists(st.integers(0, len(SHAPES) - 1), max_size=50),
    asked=st.sampled_from(SHAPES),
    cpu_milli=st.sampled_from([40_000, 96_000, 160_000]),
    demand=st.sampled_from([DEMAND, SCARCE]),
)
def test_priced_gaps_score_is_the_growth_of_the_potential(
    history: list[int], asked: Shape, cpu_milli: int, demand: Demand
) -> None:
    nodes = [node("a", 8, cpu_milli), node("b", 8), node("c", 2, 104_000, "T4"), node("d", 4, 32_000, "T4")]
    cluster = Cluster(nodes, order_seed=None)
    engine = Engine(cluster, policy_named("pgb", demand=demand))
    spread = Engine(cluster, policy_named("random", seed=len(history)))
    for index in history:
        placement = spread.decide(SHAPES[index])
        if placement is not None:
            cluster.place(SHAPES[index], placement)
    tables = learn(demand, cluster)
    assert (tables.spare is not None) == (demand is SCARCE)
    typical = [(key[0], key[1], share) for key, share in demand.typical()]
    scores = engine.scores(asked).copy()
    for row in range(len(nodes)):
        placement = decided_on(engine, asked, row)
        if placement is None:
            assert scores[row] == -np.inf
            continue
        before = potential(cluster, row, tables, typical)
        cluster.place(asked, placement)
        after = potential(cluster, row, tables, typical)
        cluster.release(asked, placement)
        assert scores[row] == pytest.approx(before - after, abs=0.02)


def test_pgb_places_a_slice_into_a_gap_before_an_idle_device() -> None:
    cluster = cluster_with((part(770), 1, (0,)), nodes=[node("idle"), node("begun")])
    assert goes_to("pgb", cluster, part(230)) == ("begun", (0,))


def test_pgb_keeps_idle_nodes_for_large_requests() -> None:
    cluster = cluster_with((WHOLE, 1, (0,)), nodes=[node("whole"), node("broken")])
    assert goes_to("pgb", cluster, WHOLE)[0] == "broken"


def test_pgb_leaves_scarce_models_to_requests_that_require_them() -> None:
    scarce = Demand(
        {WHOLE: 50, Shape(cpu_milli=8_000, gpu_count=1, gpu_milli=WHOLE_MILLI, models=frozenset({"T4"})): 50}
    )
    cluster = cluster_with(nodes=[node("wanted", 2, 96_000, "T4"), node("other", 2)])
    assert goes_to(policy_named("pgb", demand=scarce), cluster, WHOLE)[0] == "other"


def test_pgb_balances_free_memory_and_compute_of_devices() -> None:
    cards = tuple(GpuSpec(model="H100", memory_mib=80_000) for _ in range(2))
    cluster = Cluster([NodeSpec(name="n", cpu_milli=96_000, memory_mib=1 << 20, gpus=cards)], order_seed=None)
    hungry = Shape(gpu_count=1, gpu_milli=200, gpu_memory_mib=60_000)
    busy = Shape(gpu_count=1, gpu_milli=700, gpu_memory_mib=8_000)
    cluster.place(hungry, NodePlacement(node=0, devices=(0,)))
    assert goes_to(policy_named("pgb", demand=Demand({hungry: 1, busy: 1})), cluster, busy) == ("n", (0,))


def test_online_learning_uses_arrived_requests_only() -> None:
    """Compare scores with those without demand until enough requests have arrived, then with those of exactly that demand."""
    cluster = cluster_with((part(770), 0, (0,)), nodes=[node("a"), node("b", 2, 104_000, "T4")])
    online = Engine(cluster, policy_named("pgb-online"))
    unlearned = online.scores(part(230)).copy()
    seen = [shape for shape, count in DEMAND.counts.items() for _ in range(count)]
    seen = (seen * 10)[:200]
    for shape in seen[:-1]:
        online.decide(shape)
    assert np.array_equal(online.scores(part(230)), unlearned)
    online.decide(seen[-1])
    known = Engine(cluster, policy_named("pgb", demand=Demand.from_shapes(seen)))
    assert np.array_equal(online.scores(part(230)), known.scores(part(230)))


# ------------------------------------------------------------------------------------------------ combinations
def test_small_topology_weight_decides_among_equal_scores() -> None:
    islands = tuple(GpuSpec(model="G2", island=i // 4) for i in range(8))
    cluster = Cluster([NodeSpec(name="n", cpu_milli=96_000, memory_mib=1 << 20, gpus=islands)], order_seed=None)
    assert goes_to("bestfit:1+topology:0.2", cluster, WHOLE) == ("n", (0,))


@pytest.mark.parametrize("name", NAMES)
def test_combined_policy_fits_where_its_parts_fit(name: str) -> None:
    cluster = cluster_with((WHOLE, 0, (0,)), nodes=[node("a", 1), node("b", 1)])
    assert goes_to(f"{name}:1+spread:0.5", cluster, part(500)) == ("b", (0,))


@pytest.mark.parametrize("text", ["magic", "pgb:much", "pgb:0", "pgb:-1+fgd:1", "pgb:nan", "pgb:inf", "", "pgb:1+"])
def test_unknown_policy_is_refused_with_a_hint(text: str) -> None:
    with pytest.raises(CalabashError) as caught:
        policy_named(text)
    assert caught.value.hint


@pytest.mark.parametrize("demand", [None, DEMAND])
def test_pgb_scores_one_row_as_it_scores_all_rows_together(demand: Demand | None) -> None:
    scored = 0
    for seed in range(12):
        rng = random.Random(seed)
        cluster = random_cluster(rng)
        scorer = policy_named("pgb-online" if demand is None else "pgb", demand=demand).bind(cluster)
        for _ in range(250):
            scorer.observe(random_shape(rng))
        for shape in (*DEMAND.counts, *(random_shape(rng) for _ in range(10))):
            compiled = CompiledShape(cluster, shape)
            together, devices = scorer.score(compiled, np.arange(cluster.node_count))
            for row in range(cluster.node_count):
                alone, device = scorer.score(compiled, np.array([row]))
                assert alone.round(9).tolist() == together[row : row + 1].round(9).tolist()
                assert (device is None) == (devices is None)
                if device is not None and devices is not None and np.isfinite(alone[0]):
                    assert device[0] == devices[row]
                scored += bool(np.isfinite(alone[0]))
    assert scored > 100


def test_growth_by_a_slice_is_equal_with_and_without_a_table_of_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(1)
    for _ in range(12):
        cluster = random_cluster(rng)
        scorer = policy_named("pgb", demand=DEMAND).bind(cluster)
        for milli in (1, 200, 333, 999):
            found = []
            for few in (1024, 0):
                monkeypatch.setattr(pgb_module, "_FEW_GAPS", few)
                scores, devices = scorer.score(CompiledShape(cluster, part(milli, 100)), np.arange(cluster.node_count))
                assert devices is not None
                found.append((scores.tolist(), devices.tolist()))
            assert found[0] == found[1]
