"""Tests of what-if releases, counts of fitting requests and estimated starts, compared with one-by-one computations."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.oracle.histories import MODELS, random_shape
from tests.oracle.ledger import CARD_MIB

from calabash.sched.actions.estimate import earliest_start, estimated_end_s
from calabash.sched.actions.packing import place_together
from calabash.sched.actions.plan import Placed
from calabash.sched.cluster.arrays import Cluster
from calabash.sched.cluster.device_choice import choose_devices
from calabash.sched.cluster.fit import CompiledShape
from calabash.sched.cluster.releases import Releases, Taken
from calabash.sched.cluster.shape import NodePlacement, Shape, Topology
from calabash.sched.cluster.spec import GpuSpec, NodeSpec
from calabash.sched.decisions import Options, Request, Running
from calabash.sched.queues.spec import QueueSpec
from calabash.sched.scheduler import Scheduler
from calabash.sched.state import SchedulerState


def random_nodes(rng: random.Random, *, mig: bool) -> list[NodeSpec]:
    nodes = []
    for number in range(rng.randint(1, 4)):
        model = rng.choice(list(MODELS))
        mode = "mig" if mig and model == "A100-80" and rng.random() < 0.5 else ""
        gpu = GpuSpec(model=model, memory_mib=MODELS[model], mode=mode, numa=number % 2)
        nodes.append(
            NodeSpec(name=f"n{number}", cpu_milli=8000, memory_mib=16_384, gpus=(gpu,) * rng.choice((1, 2, 4)))
        )
    return nodes


def shape_of(rng: random.Random, *, mig: bool) -> Shape:
    while True:
        shape = random_shape(rng, simple=False)
        if rng.random() < 0.3:
            topology, required = rng.choice((Topology.ANY, Topology.NUMA)), rng.random() < 0.5
            count = rng.choice((1, 2, 4))
            shape = Shape(gpu_count=count, gpu_milli=1000, cpu_milli=500, topology=topology, topology_required=required)
        elif rng.random() < 0.3:
            milli, mib = rng.choice((0, 200, 350)), rng.choice((1000, 8000))
            shape = Shape(gpu_count=rng.choice((1, 1, 2)), gpu_milli=milli, gpu_memory_mib=mib, cpu_milli=300)
        if mig or not shape.mig_profile:
            return shape


def fill(rng: random.Random, cluster: Cluster, *, mig: bool) -> list[Taken]:
    taken = []
    for _ in range(rng.randint(0, 25)):
        shape = shape_of(rng, mig=mig)
        placement = choose_devices(CompiledShape(cluster, shape), rng.randrange(cluster.node_count))
        if placement is not None:
            cluster.place(shape, placement)
            taken.append((shape, placement))
    rng.shuffle(taken)
    return taken


def columns(cluster: Cluster) -> dict[str, list[object]]:
    names = [name for name, _, _ in (*cluster._VECTORS, *cluster._MATRICES)]
    found = {name: getattr(cluster, name).tolist() for name in (*names, "kind_users")}
    return {**found, "mig": [sorted(cluster.mig_states.items())]}


@given(st.integers(0, 2**32), st.booleans())
@settings(max_examples=examples(60), deadline=None)
def test_releasing_many_at_once_equals_releasing_one_by_one(seed: int, mig: bool) -> None:
    nodes = random_nodes(random.Random(seed), mig=mig)
    clusters = [Cluster(nodes, order_seed=None) for _ in range(2)]
    taken, _ = (fill(random.Random(seed), cluster, mig=mig) for cluster in clusters)
    at_once, one_by_one = clusters
    rng = random.Random(seed)
    if rng.random() < 0.3:
        for cluster in clusters:
            cluster.keep_mode(0, 0, "timeslice")
    before = columns(at_once)
    after = [before]
    for shape, placement in taken:
        one_by_one.release(shape, placement)
        after.append(columns(one_by_one))
    releases = Releases(at_once, taken)
    assert releases.has_mig == any(shape.mig_profile for shape, _ in taken)
    for _ in range(6):
        count = rng.randint(0, len(taken))
        releases.set_released(count)
        assert columns(at_once) == after[count]
    releases.set_released(0)
    assert columns(at_once) == before
    count = rng.randint(0, len(taken))
    position = at_once.position
    with releases.released(count):
        assert columns(at_once) == after[count]
        assert set(at_once.changed_since(position) or ()) == {placement.node for _, placement in taken[:count]}
        position = at_once.position
    assert columns(at_once) == before
    assert set(at_once.changed_since(position) or ()) >= {placement.node for _, placement in taken[:count]}


@given(st.integers(0, 2**32), st.booleans())
@settings(max_examples=examples(60), deadline=None)
def test_count_of_a_shape_is_an_upper_bound_of_its_placements_on_a_node(seed: int, mig: bool) -> None:
    rng = random.Random(seed)
    cluster = Cluster(random_nodes(rng, mig=mig), order_seed=None)
    fill(rng, cluster, mig=mig)
    if rng.random() < 0.3:
        cluster.cordon(0)
    if rng.random() < 0.3:
        cluster.set_health(0, 0, healthy=False)
    for _ in range(5):
        shape = shape_of(rng, mig=mig)
        compiled = CompiledShape(cluster, shape)
        counts = compiled.count(np.arange(cluster.node_count)).tolist()
        for row, count in enumerate(counts):
            placed: list[NodePlacement] = []
            while (placement := choose_devices(compiled, row)) is not None and len(placed) < 50:
                cluster.place(shape, placement)
                placed.append(placement)
            for placement in reversed(placed):
                cluster.release(shape, placement)
            assert len(placed) <= count
            assert len(placed) == count or not compiled.counted


def test_count_of_a_shape_without_amounts_is_unbounded() -> None:
    cluster = Cluster([NodeSpec(name="n", cpu_milli=1000, memory_mib=1000)])
    assert CompiledShape(cluster, Shape()).count(np.arange(1)).tolist() == [1 << 30]
    cluster.cordon(0)
    assert CompiledShape(cluster, Shape()).count(np.arange(1)).tolist() == [0]


# ---- estimates --------------------------------------------------------------------------------------------------------


def tried_one_by_one(
    state: SchedulerState, requests: Sequence[Request], running: Sequence[Running]
) -> tuple[float, tuple[Placed, ...]] | None:
    """Return the start found by trials alone: doubling and then bisecting the number of releases."""
    ends = sorted((estimated_end_s(r, state.now_s, state.options.default_run_time_s), r.request.id, r) for r in running)

    def trial(count: int) -> tuple[Placed, ...] | None:
        mark = state.transaction.mark()
        for _, _, r in ends[:count]:
            state.transaction.release(r.request.shape, r.placement)
        placed = place_together(state.transaction, requests)
        state.transaction.rollback(mark)
        return placed

    low, high = 0, min(1, len(ends))
    while (found := trial(high)) is None:
        if high == len(ends):
            return None
        low, high = high, min(2 * high, len(ends))
    while high - low > 1:
        middle = (low + high) // 2
        placed = trial(middle)
        if placed is None:
            low = middle
        else:
            high, found = middle, placed
    return (ends[high - 1][0] if high else state.now_s), found


@given(st.integers(0, 2**32), st.booleans())
@settings(max_examples=examples(80), deadline=None)
def test_earliest_start_equals_that_of_a_search_by_trials(seed: int, mig: bool) -> None:
    rng = random.Random(seed)
    options = Options(fraction_memory_mib=CARD_MIB, default_run_time_s=500.0)
    nodes = random_nodes(rng, mig=mig)
    scheduler = Scheduler(nodes, [QueueSpec(name="q")], options=options, policy=rng.choice(("pgb-online", "bestfit")))
    for number in range(rng.randint(0, 25)):
        shape = shape_of(rng, mig=mig)
        placement = choose_devices(CompiledShape(scheduler.cluster, shape), rng.randrange(len(nodes)))
        if placement is not None:
            run_time_s = rng.choice((None, *(float(rng.randint(1, 300)) for _ in range(4))))
            request = Request(id=f"r{number}", queue="q", shape=shape, run_time_s=run_time_s)
            scheduler.adopt(request, placement=placement, started_at_s=float(rng.randint(-50, 0)))
    scheduler.advance(5.0)
    state = scheduler.state
    running = [r for gang in state.registry.gangs.values() for r in gang.running.values()]
    before = columns(state.cluster)
    for _ in range(4):
        shapes = [shape_of(rng, mig=mig) for _ in range(rng.choice((1, 1, 2)))]
        requests = [
            Request(id=f"w{i}", queue="q", shape=rng.choice(shapes), gang="g") for i in range(rng.randint(1, 6))
        ]
        assert earliest_start(state, requests, running) == tried_one_by_one(state, requests, running)
        assert columns(state.cluster) == before


def test_reservation_for_a_large_gang_places_it_once() -> None:
    node_count, members = 40, 8
    gpus = (GpuSpec(model="A100", memory_mib=40960),) * 8
    nodes = [NodeSpec(name=f"n{i}", cpu_milli=96_000, memory_mib=1 << 20, gpus=gpus) for i in range(node_count)]
    scheduler = Scheduler(nodes, [QueueSpec(name="q")])
    whole = Shape(gpu_count=1, gpu_milli=1000)
    for node in range(node_count):
        for k in range(8):
            request = Request(id=f"r{node}.{k}", queue="q", shape=whole, run_time_s=float(10 + node + k * 100))
            scheduler.adopt(request, node=f"n{node}", started_at_s=0.0)
    state = scheduler.state
    running = [r for gang in state.registry.gangs.values() for r in gang.running.values()]
    requests = [
        Request(id=f"y{i}", queue="q", gang="y", shape=Shape(gpu_count=8, gpu_milli=1000)) for i in range(members)
    ]
    position = state.cluster.position
    found = earliest_start(state, requests, running)
    assert found is not None
    assert found[0] == 10 + (members - 1) + 700
    # The rows change by the releases and their undoing; each member is placed and released again.
    assert state.cluster.position - position <= 2 * node_count + 2 * members
