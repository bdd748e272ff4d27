"""Tests of verdicts shared by shapes of equal ranks: equal to judging every shape on all nodes."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.unit.sched.explain.test_explain import random_cluster, random_shape

from calabash.sched.cluster.arrays import Cluster
from calabash.sched.cluster.engine import Engine
from calabash.sched.cluster.fit import CompiledShape
from calabash.sched.cluster.placer import ClusterPlacer
from calabash.sched.cluster.shape import NodePlacement, Shape
from calabash.sched.cluster.spec import GpuSpec, NodeSpec
from calabash.sched.explain import verdicts as verdicts_module
from calabash.sched.explain.nodes import NodeVerdict, changes_for, judge
from calabash.sched.explain.verdicts import SINGLE_MAX, Verdict, Verdicts
from calabash.sched.policies.registry import policy_named


def room_of(cluster: Cluster) -> ClusterPlacer:
    return ClusterPlacer(cluster, Engine(cluster, policy_named("bestfit")))


def one_by_one(placer: ClusterPlacer, shape: Shape) -> Verdict:
    verdict = judge(placer.compiled(shape))
    return verdict, () if verdict.fitting else changes_for(placer.cluster, shape)


def varied(rng: random.Random, shape: Shape) -> Shape:
    """Return the shape with other amounts, close to the amounts of nodes."""
    if rng.random() < 0.2:
        shape = replace(shape, mode="timeslice", gpu_slices=rng.randint(1, 2), gpu_slices_max=2)
    if shape.gpu_milli == 1000 and rng.random() < 0.8:
        return replace(shape, cpu_milli=rng.choice((0, 1, rng.randint(0, 20_000))))
    memory_mib = rng.choice((0, 1, rng.randint(0, 65_536)))
    gpu_memory_mib = rng.choice((0, 1, rng.randint(0, 45_000)))
    gpu_milli = rng.choice((0, 1, 2, rng.randint(1, 1000))) if gpu_memory_mib else rng.randint(1, 1000)
    cpu_milli = rng.choice((0, 1, rng.randint(0, 20_000)))
    return replace(
        shape, gpu_milli=gpu_milli, gpu_memory_mib=gpu_memory_mib, cpu_milli=cpu_milli, memory_mib=memory_mib
    )


@given(st.integers(0, 2**32))
@settings(max_examples=examples(60), deadline=None)
def test_verdict_shared_by_equal_ranks_equals_a_verdict_of_all_nodes(seed: int) -> None:
    rng = random.Random(seed)
    placer = room_of(random_cluster(rng))
    verdicts = Verdicts(placer)
    base = [random_shape(rng) for _ in range(2)]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(verdicts_module, "SINGLE_MAX", 0)
        for _ in range(40):
            shape = varied(rng, rng.choice(base))
            assert verdicts.verdict(shape) == one_by_one(placer, shape)


def test_verdicts_on_many_shapes_judge_full_nodes_only_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[CompiledShape] = []
    monkeypatch.setattr(verdicts_module, "judge", counting(looked))
    placer = full_room()
    verdicts = Verdicts(placer)
    shapes = [Shape(gpu_count=1, gpu_milli=1 + i, cpu_milli=i) for i in range(500)]
    assert [verdicts.verdict(shape) for shape in shapes] == [one_by_one(placer, shape) for shape in shapes]
    assert len(looked) <= SINGLE_MAX + 4


def test_verdicts_follow_a_change_of_the_cluster_but_not_one_that_is_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[CompiledShape] = []
    monkeypatch.setattr(verdicts_module, "SINGLE_MAX", 0)
    monkeypatch.setattr(verdicts_module, "judge", counting(looked))
    placer = full_room()
    verdicts, place = Verdicts(placer), NodePlacement(node=0, devices=(0,))
    verdicts.verdict(Shape(gpu_count=1, gpu_milli=300))
    with verdicts.kept():
        placer.release(Shape(gpu_count=1, gpu_milli=1000), place)
        placer.place(Shape(gpu_count=1, gpu_milli=1000), place)
    verdicts.verdict(Shape(gpu_count=1, gpu_milli=301))
    assert len(looked) == 1
    placer.release(Shape(gpu_count=1, gpu_milli=1000), place)
    assert verdicts.verdict(Shape(gpu_count=1, gpu_milli=302))[0].fitting == 1
    with verdicts.kept():
        pass
    verdicts.use_version(1)
    placer.place(Shape(gpu_count=1, gpu_milli=1000), place)
    with verdicts.kept():
        pass
    assert verdicts.verdict(Shape(gpu_count=1, gpu_milli=302))[0].fitting == 0


def full_room() -> ClusterPlacer:
    nodes = [NodeSpec(name=f"n{i}", cpu_milli=8000, memory_mib=1024, gpus=(GpuSpec(model="T4"),)) for i in range(3)]
    placer = room_of(Cluster(nodes, order_seed=None))
    for node in range(3):
        placer.place(Shape(gpu_count=1, gpu_milli=1000), NodePlacement(node=node, devices=(0,)))
    return placer


def counting(looked: list[CompiledShape]) -> Callable[[CompiledShape], NodeVerdict]:
    def judge_and_count(compiled: CompiledShape) -> NodeVerdict:
        looked.append(compiled)
        return judge(compiled)

    return judge_and_count
