"""Tests of explanations: all numbers are correct, and each proposed change would let the request fit."""

from __future__ import annotations

import random
import re
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from calabash.model.errors import Reason
from calabash.model.messages import in_full
from calabash.model.units import parse_memory_mib
from calabash.sched.cluster.arrays import Cluster
from calabash.sched.cluster.device_choice import choose_devices
from calabash.sched.cluster.fit import CompiledShape
from calabash.sched.cluster.shape import NodePlacement, Shape
from calabash.sched.cluster.spec import GpuSpec, NodeSpec
from calabash.sched.explain.nodes import changes_for, judge


def random_devices(rng: random.Random) -> tuple[GpuSpec, ...]:
    """Return the devices of a node: none, one or four, equal or different."""
    count, mixed = rng.choice((0, 1, 4)), rng.random() < 0.3
    made = [GpuSpec(model=rng.choice(("T4", "A100")), memory_mib=rng.choice((16384, 40960))) for _ in range(count)]
    return tuple(made if mixed else made[:1] * count)


def random_cluster(rng: random.Random) -> Cluster:
    nodes = [
        NodeSpec(
            name=f"n{i}",
            cpu_milli=rng.choice((4000, 16000)),
            memory_mib=rng.choice((8192, 65536)),
            gpus=random_devices(rng),
            labels={"zone": rng.choice("ab")},
            taints=("dedicated=x:NoSchedule",) if rng.random() < 0.2 else (),
        )
        for i in range(rng.randint(1, 6))
    ]  # fmt: skip
    cluster = Cluster(nodes, order_seed=None)
    for row in range(cluster.node_count):
        for device in range(int(cluster.gpu_count[row])):
            if rng.random() < 0.7:
                shape = Shape(
                    gpu_count=1, gpu_milli=rng.choice((200, 500, 900)), gpu_memory_mib=rng.choice((1024, 8192, 15000)),
                    cpu_milli=rng.choice((0, 1000)),
                )  # fmt: skip
                if rng.random() < 0.3:
                    shape = replace(shape, mode="timeslice", gpu_slices=1, gpu_slices_max=1)
                if choose_devices(CompiledShape(cluster, shape), row) or cluster.cpu_free_milli[row] >= shape.cpu_milli:
                    cluster.place(shape, NodePlacement(node=row, devices=(device,)))
            if rng.random() < 0.2:
                cluster.set_health(row, device, healthy=False)
    return cluster


def random_shape(rng: random.Random) -> Shape:
    whole = rng.random() < 0.4
    return Shape(
        gpu_count=rng.choice((1, 2, 4, 8)) if whole else rng.choice((1, 1, 2)),
        gpu_milli=1000 if whole else rng.choice((300, 600, 950)),
        gpu_memory_mib=0 if whole else rng.choice((0, 2048, 12000, 39000)),
        cpu_milli=rng.choice((0, 2000, 8000)),
        memory_mib=rng.choice((0, 4096, 32768)),
        models=frozenset(rng.choice(((), (), ("A100",), ("H100",)))),
        selector=rng.choice(((), (), ("zone=a",), ("zone=c",))),
    )


def apply(shape: Shape, change: str) -> Shape:  # noqa: PLR0911  one per kind of change
    """Return the shape after the change that a text proposes."""
    if match := re.fullmatch(r"would fit if memory <= (\S+)", change):
        return replace(shape, gpu_memory_mib=exact_mib(match[1]))
    if match := re.fullmatch(r"would fit if the fraction <= (\S+)", change):
        return replace(shape, gpu_milli=round(float(match[1]) * 1000))
    if match := re.fullmatch(r"would fit with (\d+) devices instead of \d+", change):
        return replace(shape, gpu_count=int(match[1]))
    if match := re.fullmatch(r"would fit if CPU <= (\S+)", change):
        return replace(shape, cpu_milli=round(float(match[1]) * 1000))
    if match := re.fullmatch(r"would fit if host memory <= (\S+)", change):
        return replace(shape, memory_mib=exact_mib(match[1]))
    if change.startswith("would fit on another device model"):
        return replace(shape, models=frozenset())
    if change.startswith("would fit without the selector"):
        return replace(shape, selector=())
    assert change == "would fit if it tolerated the taints", change
    return replace(shape, tolerations=frozenset(("*",)))


def exact_mib(text: str) -> int:
    """Return the printed amount in MiB less the largest rounding error, a tenth of a GiB."""
    mib = parse_memory_mib(text)
    return max(1, mib - 52) if "." in text else mib


def check(seed: int) -> int:
    rng = random.Random(seed)
    cluster, shape = random_cluster(rng), random_shape(rng)
    compiled = CompiledShape(cluster, shape)
    verdict = judge(compiled)
    assert verdict.fitting == int(compiled.fitting().sum())
    assert verdict.fitting + sum(c.nodes for c in verdict.causes) == verdict.nodes == cluster.node_count
    assert verdict.summary.startswith(f"{verdict.fitting}/{verdict.nodes} nodes are available")
    for cause in verdict.causes:
        if cause.reason in (
            Reason.NO_CORES,
            Reason.NO_MEMORY,
            Reason.NO_CPU,
            Reason.NO_HOST_MEMORY,
            Reason.NO_CAPACITY,
        ):
            assert cause.largest < cause.asked, f"seed {seed}: {cause}"
        if cause.reason is Reason.NO_CORES and cause.largest:
            alone = replace(shape, gpu_milli=int(cause.largest), gpu_memory_mib=0, cpu_milli=0, memory_mib=0)
            assert CompiledShape(cluster, alone).fitting().any(), f"seed {seed}: {cause}"
    if verdict.fitting:
        return 0
    assert verdict.dominant is not None
    changes = changes_for(cluster, shape)
    for change in changes:
        assert CompiledShape(cluster, apply(shape, in_full(change))).fitting().any(), f"seed {seed}: {change}"
    return len(changes)


def test_counts_add_up_and_proposed_changes_help() -> None:
    count = examples(800)
    assert sum(check(seed) for seed in range(count)) > count / 4


@given(st.integers(0, 10**9))
@settings(max_examples=examples(80), deadline=None)
def test_counts_add_up_and_proposed_changes_help_in_generated_clusters(seed: int) -> None:
    check(seed)
