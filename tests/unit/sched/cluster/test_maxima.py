"""Tests of the maxima: their refusals are correct, and the engine gives equal results with and without them."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.oracle.histories import History
from tests.unit.sched.explain.test_explain import random_cluster, random_shape

from calabash.model.errors import Reason
from calabash.sched.cluster import engine as engine_module
from calabash.sched.cluster import maxima as maxima_module
from calabash.sched.cluster.arrays import Cluster
from calabash.sched.cluster.columns import Rows
from calabash.sched.cluster.device_choice import choose_devices
from calabash.sched.cluster.engine import Engine
from calabash.sched.cluster.fit import CompiledShape
from calabash.sched.cluster.maxima import Maxima
from calabash.sched.cluster.scoring import Scored
from calabash.sched.cluster.shape import NodePlacement, Shape
from calabash.sched.cluster.spec import GpuSpec, NodeSpec
from calabash.sched.cycle import Cycle
from calabash.sched.decisions import Bind, Request
from calabash.sched.policies.registry import policy_named
from calabash.sched.queues.gang import StartGroup
from calabash.sched.queues.spec import QueueSpec
from calabash.sched.scheduler import Scheduler


def any_shape(rng: random.Random) -> Shape:
    """Return a random shape; some slices request memory only."""
    shape = random_shape(rng)
    return replace(shape, gpu_milli=0) if shape.gpu_memory_mib and rng.random() < 0.3 else shape


class Changes:
    """Random changes of a cluster; placements are released later."""

    def __init__(self, rng: random.Random, cluster: Cluster) -> None:
        self._rng, self._cluster = rng, cluster
        self._placed: list[tuple[Shape, NodePlacement]] = []

    def change(self) -> None:
        rng, cluster = self._rng, self._cluster
        row = rng.randrange(cluster.node_count)
        match rng.choice(("place", "place", "place", "release", "cordon", "health", "join")):
            case "place":
                shape = any_shape(rng)
                placement = choose_devices(CompiledShape(cluster, shape), row)
                if placement is not None:
                    cluster.place(shape, placement)
                    self._placed.append((shape, placement))
            case "release" if self._placed:
                cluster.release(*self._placed.pop(rng.randrange(len(self._placed))))
            case "cordon":
                cluster.cordon(row, schedulable=rng.random() < 0.7)
            case "health" if cluster.gpu_count[row]:
                cluster.set_health(row, rng.randrange(int(cluster.gpu_count[row])), healthy=rng.random() < 0.7)
            case "join" if rng.random() < 0.2:
                count = rng.randint(0, cluster.width)
                gpus = (GpuSpec(model="A100", memory_mib=40960),) * count
                name = f"new{cluster.node_count}"
                cluster.add_node(NodeSpec(name=name, cpu_milli=64_000, memory_mib=65_536, gpus=gpus))


@given(st.integers(0, 2**32))
@settings(max_examples=examples(60), deadline=None)
def test_shape_that_maxima_refuse_fits_nowhere(seed: int) -> None:
    rng = random.Random(seed)
    cluster = random_cluster(rng)
    maxima, changes = Maxima(cluster), Changes(rng, cluster)
    for _ in range(30):
        for _ in range(rng.choice((0, 1, 1, 4))):
            changes.change()
        shape = any_shape(rng)
        fits = CompiledShape(cluster, shape).fitting()
        if maxima.exceeded(shape):
            assert not fits.any()
        schedulable = cluster.schedulable.copy()
        row = rng.randrange(cluster.node_count)
        if maxima.exceeded_on(shape, (row,)):
            cluster.cordon(row, schedulable=True)
            assert choose_devices(CompiledShape(cluster, shape), row) is None
            cluster.cordon(row, schedulable=bool(schedulable[row]))


def test_maxima_refuse_more_than_any_schedulable_node_has_free() -> None:
    gpus = (GpuSpec(model="A100", memory_mib=40960),) * 4
    nodes = [NodeSpec(name=f"n{i}", cpu_milli=8000 * (i + 1), memory_mib=1024, gpus=gpus) for i in range(2)]
    cluster = Cluster(nodes, order_seed=None)
    maxima = Maxima(cluster)
    whole = Shape(gpu_count=4, gpu_milli=1000, cpu_milli=16_000)
    assert not maxima.exceeded(whole)
    cluster.place(Shape(gpu_count=1, gpu_milli=300), NodePlacement(node=1, devices=(2,)))
    cluster.place(Shape(gpu_count=1, gpu_milli=300), NodePlacement(node=0, devices=(0,)))
    assert maxima.exceeded(whole)
    assert not maxima.exceeded(Shape(gpu_count=4, gpu_milli=700))
    assert maxima.exceeded(Shape(gpu_count=4, gpu_milli=701))
    assert not maxima.exceeded(Shape(gpu_count=3, gpu_milli=1000))
    assert maxima.exceeded(Shape(gpu_count=5, gpu_milli=1))
    assert maxima.exceeded(Shape(gpu_count=1, gpu_memory_mib=40961))
    assert maxima.exceeded(Shape(memory_mib=1025))
    assert not maxima.exceeded(Shape(cpu_milli=16_000))
    cluster.cordon(1)
    assert maxima.exceeded(Shape(cpu_milli=8001))
    assert not maxima.exceeded_on(Shape(cpu_milli=16_000), (1,))
    assert maxima.exceeded_on(Shape(cpu_milli=8001), (0,))
    cluster.cordon(0)
    assert maxima.exceeded(Shape())


@pytest.mark.parametrize("open_max", [0, 256])
def test_maxima_of_different_nodes_refuse_only_where_few_nodes_are_open(
    monkeypatch: pytest.MonkeyPatch, open_max: int
) -> None:
    monkeypatch.setattr(maxima_module, "_OPEN_MAX", open_max)
    gpus = (GpuSpec(model="A100", memory_mib=40960),) * 2
    nodes = [NodeSpec(name=f"n{i}", cpu_milli=8000, memory_mib=1024, gpus=gpus) for i in range(2)]
    cluster = Cluster(nodes, order_seed=None)
    maxima = Maxima(cluster)
    cluster.place(Shape(cpu_milli=7000), NodePlacement(node=0))
    cluster.place(Shape(gpu_count=2, gpu_milli=1000), NodePlacement(node=1, devices=(0, 1)))
    assert maxima.exceeded(Shape(gpu_count=2, gpu_milli=1000, cpu_milli=1001)) == (open_max > 0)
    assert not maxima.exceeded(Shape(gpu_count=2, gpu_milli=1000, cpu_milli=1000))
    assert not maxima.exceeded(Shape(cpu_milli=8000))


@given(st.integers(0, 2**32), st.sampled_from(("pgb-online", "fgd", "bestfit", "random")))
@settings(max_examples=examples(30), deadline=None)
def test_engine_gives_equal_results_with_and_without_maxima(seed: int, policy: str) -> None:
    rng = random.Random(seed)
    cluster = random_cluster(rng)
    changes = Changes(rng, cluster)
    always, never = (Engine(cluster, policy_named(policy)) for _ in range(2))
    shapes = [any_shape(rng) for _ in range(8)]
    with pytest.MonkeyPatch.context() as patched:
        for _ in range(60):
            for _ in range(rng.choice((0, 0, 1, 1, 4))):
                changes.change()
            shape = rng.choice(shapes)
            patched.setattr(engine_module, "_REFUSALS_MIN", 0)
            found = always.decide(shape), always.scores(shape).tolist()
            patched.setattr(engine_module, "_REFUSALS_MIN", 1 << 30)
            assert found == (never.decide(shape), never.scores(shape).tolist())


def test_full_cluster_refuses_many_shapes_without_a_score_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = (GpuSpec(model="A100", memory_mib=40960),) * 2
    nodes = [NodeSpec(name=f"n{i}", cpu_milli=64_000, memory_mib=1024, gpus=gpus) for i in range(4)]
    scheduler = Scheduler(nodes, [QueueSpec(name="q")])
    for node in range(4):
        request = Request(id=f"r{node}", queue="q", shape=Shape(gpu_count=2, gpu_milli=1000), run_time_s=100.0)
        scheduler.adopt(request, node=f"n{node}", started_at_s=0.0)
    scorer = scheduler.placer.engine.scorer
    scored: list[Shape] = []
    original = scorer.score

    def counted(compiled: CompiledShape, rows: Rows) -> Scored:
        scored.append(compiled.shape)
        return original(compiled, rows)

    monkeypatch.setattr(scorer, "score", counted)
    for number in range(200):
        shape = Shape(gpu_count=1, gpu_milli=100 + number, cpu_milli=number)
        scheduler.submit(Request(id=f"w{number}", queue="q", shape=shape))
    assert len(scheduler.cycle(1.0)) == 200
    assert len(scheduler.state.reservations) == 1
    assert len(scored) <= 20
    scheduler.finished("r0")
    scored.clear()
    attempts: list[StartGroup] = []
    attempt = Cycle._attempt

    def attempted(cycle: Cycle, start_group: StartGroup) -> Reason | None:
        attempts.append(start_group)
        return attempt(cycle, start_group)

    monkeypatch.setattr(Cycle, "_attempt", attempted)
    started = [decision.id for decision in scheduler.cycle(2.0) if isinstance(decision, Bind)]
    assert 2 <= len(started) <= 20
    assert len(scored) <= 3 * len(started) + 20
    assert len(attempts) <= len(started) + 20


def test_request_that_is_refused_without_an_attempt_is_one_that_an_attempt_refuses() -> None:
    refused: list[StartGroup] = []
    hopeless, attempt = Cycle._is_hopeless, Cycle._attempt

    def checked(cycle: Cycle, start_group: StartGroup) -> bool:
        if not hopeless(cycle, start_group):
            return False
        promises, position = [*cycle._held.reservations], cycle._state.registry.version
        assert attempt(cycle, start_group) is Reason.NO_CAPACITY
        assert (cycle._held.reservations, cycle._state.registry.version) == (promises, position)
        refused.append(start_group)
        return True

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(engine_module, "_REFUSALS_MIN", 0)
        patched.setattr(Cycle, "_is_hopeless", checked)
        for seed in range(examples(24)):
            assert History(seed).run(60) > 0
    assert len(refused) > 20


def test_new_shape_is_scored_only_on_nodes_with_free_compute_if_they_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = (GpuSpec(model="A100", memory_mib=40960),) * 2
    cluster = Cluster([NodeSpec(name=f"n{i}", cpu_milli=64_000, memory_mib=1024, gpus=gpus) for i in range(300)])
    engine = Engine(cluster, policy_named("pgb-online"))
    for node in range(297):
        cluster.place(Shape(gpu_count=2, gpu_milli=1000), NodePlacement(node=node, devices=(0, 1)))
    cluster.cordon(297)
    assert [engine.best(Shape(gpu_count=2, gpu_milli=1000, cpu_milli=64_001 + n)) for n in range(10)] == [None] * 10
    scored: list[list[int]] = []
    original = engine.scorer.score

    def counted(compiled: CompiledShape, rows: Rows) -> Scored:
        scored.append(rows.tolist())
        return original(compiled, rows)

    monkeypatch.setattr(engine.scorer, "score", counted)
    for number in range(3):
        placement = engine.best(Shape(gpu_count=1, gpu_milli=500, cpu_milli=number))
        assert placement is not None
        assert placement.node == 298
    assert scored == [[298, 299]] * 3
    assert engine.best(Shape(cpu_milli=64_000)) is not None  # needs no device, so it may fit anywhere
    assert len(scored[-1]) == 300
