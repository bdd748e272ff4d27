"""Tests of best-effort compute: slices are spread, bounded per device, and placed on idle devices last."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calabash.sched.cluster.arrays import Cluster
from calabash.sched.cluster.best_effort import EXPECTED_MILLI_MIN
from calabash.sched.cluster.device_choice import choose_devices
from calabash.sched.cluster.engine import Engine
from calabash.sched.cluster.fit import CompiledShape
from calabash.sched.cluster.shape import NodePlacement, Shape
from calabash.sched.cluster.spec import GpuSpec, NodeSpec
from calabash.sched.policies.registry import policy_named

CARD_MIB = 40_960
SLICES_MAX = 64
POLICIES = ("pgb-online", "fgd", "bestfit", "spread", "random", "packing")
BEST_EFFORT = Shape(gpu_count=1, gpu_memory_mib=512, gpu_slices=1, gpu_slices_max=SLICES_MAX, mode="vgpu")
WHOLE = Shape(gpu_count=1, gpu_milli=1000, mode="exclusive")


def nodes(*counts: int) -> list[NodeSpec]:
    card = GpuSpec(model="A100", memory_mib=CARD_MIB)
    return [
        NodeSpec(name=f"gpu-{n}", cpu_milli=10**9, memory_mib=10**9, gpus=(card,) * count)
        for n, count in enumerate(counts)
    ]


def share(percent: int, memory_mib: int = 512) -> Shape:
    return Shape(
        gpu_count=1,
        gpu_milli=10 * percent,
        gpu_memory_mib=memory_mib,
        gpu_slices=1,
        gpu_slices_max=SLICES_MAX,
        mode="vgpu",
    )


def start(engine: Engine, shape: Shape) -> NodePlacement | None:
    found = engine.decide(shape)
    if found is not None:
        engine.cluster.place(shape, found)
    return found


def started(engine: Engine, shape: Shape, count: int) -> list[tuple[int, int]]:
    placed = [start(engine, shape) for _ in range(count)]
    return [(found.node, found.devices[0]) for found in placed if found is not None]


@pytest.mark.parametrize("policy", POLICIES)
def test_four_slices_share_a_device_before_an_idle_one_is_taken(policy: str) -> None:
    engine = Engine(Cluster(nodes(4), order_seed=None), policy_named(policy))
    for taken in (1, 2, 3, 4):
        started(engine, BEST_EFFORT, 1000 // EXPECTED_MILLI_MIN)
        assert len({device for device in range(4) if engine.cluster.gpu_users[0, device]}) == taken


@pytest.mark.parametrize("policy", POLICIES)
def test_further_best_effort_slices_are_spread_evenly(policy: str) -> None:
    engine = Engine(Cluster(nodes(4), order_seed=None), policy_named(policy))
    found = Counter(started(engine, BEST_EFFORT, 40))
    assert set(found.values()) == {10}


@pytest.mark.parametrize("policy", POLICIES)
def test_slices_are_spread_over_nodes_as_over_devices(policy: str) -> None:
    engine = Engine(Cluster(nodes(1, 1, 1)), policy_named(policy))
    found = Counter(started(engine, BEST_EFFORT, 30))
    assert set(found.values()) == {10}


@pytest.mark.parametrize("policy", POLICIES)
def test_device_with_allocated_compute_is_not_preferred_for_best_effort(policy: str) -> None:
    engine = Engine(Cluster(nodes(2), order_seed=None), policy_named(policy))
    promised = started(engine, share(90), 1)
    found = started(engine, BEST_EFFORT, 8)
    assert not set(promised) & set(found[:4])
    assert len(set(found)) == 1, "the device with 100 milli left is worse than a ninth of the other one"


@pytest.mark.parametrize("policy", POLICIES)
def test_a_device_takes_no_more_slices_than_its_mode_admits_and_no_more_memory_than_it_has(policy: str) -> None:
    engine = Engine(Cluster(nodes(2), order_seed=None), policy_named(policy))
    found = Counter(started(engine, BEST_EFFORT, 3 * SLICES_MAX))
    assert set(found.values()) == {SLICES_MAX}
    assert len(found) == 2
    large = Shape(gpu_count=1, gpu_memory_mib=15_000, gpu_slices=1, gpu_slices_max=SLICES_MAX, mode="vgpu")
    engine = Engine(Cluster(nodes(2), order_seed=None), policy_named(policy))
    assert Counter(started(engine, large, 9)) == {(0, 0): 2, (0, 1): 2}


def test_best_effort_slice_fits_on_a_device_without_free_compute() -> None:
    engine = Engine(Cluster(nodes(1), order_seed=None), policy_named("pgb-online"))
    started(engine, share(100), 1)
    assert started(engine, BEST_EFFORT, 1) == [(0, 0)]


def test_whole_devices_stay_free_while_slices_can_share() -> None:
    engine = Engine(Cluster(nodes(4), order_seed=None), policy_named("pgb-online"))
    started(engine, BEST_EFFORT, 4)
    assert len(started(engine, WHOLE, 4)) == 3


def test_request_for_several_devices_gets_those_with_most_expected_compute() -> None:
    cluster = Cluster(nodes(3), order_seed=None)
    engine = Engine(cluster, policy_named("pgb-online"))
    cluster.place(share(90), NodePlacement(node=0, devices=(0,)))
    cluster.place(BEST_EFFORT, NodePlacement(node=0, devices=(2,)))
    two = Shape(gpu_count=2, gpu_memory_mib=512, gpu_slices=1, gpu_slices_max=SLICES_MAX, mode="vgpu")
    found = choose_devices(CompiledShape(cluster, two), 0)
    assert found is not None
    assert found.devices == (1, 2)
    decided = engine.decide(two)
    assert decided is not None
    assert decided.devices == (1, 2)


@given(st.lists(st.sampled_from([BEST_EFFORT, share(30), share(70, 4096), WHOLE]), max_size=60), st.integers(0, 2**32))
def test_best_effort_counts_return_to_zero_after_random_starts_and_ends(shapes: list[Shape], seed: int) -> None:
    cluster = Cluster(nodes(3, 2))
    engine = Engine(cluster, policy_named("pgb-online"))
    held: list[tuple[Shape, NodePlacement]] = []
    for number, shape in enumerate(shapes):
        found = start(engine, shape)
        if found is not None:
            held.append((shape, found))
        if held and (seed >> (number % 32)) & 1:
            cluster.release(*held.pop((seed + number) % len(held)))
        best_effort = Counter((p.node, d) for s, p in held if s is BEST_EFFORT for d in p.devices)
        for row in range(cluster.node_count):
            for device in range(cluster.width):
                assert cluster.gpu_best_effort[row, device] == best_effort[row, device]
    for shape, found in held:
        cluster.release(shape, found)
    assert not cluster.gpu_best_effort.any()
