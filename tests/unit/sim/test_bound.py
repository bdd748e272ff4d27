"""Tests of the linear-programming bound: correct for cases solved by hand, and never below a reached allocation."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from calabash.model.errors import CalabashError
from calabash.sched.cluster.shape import WHOLE_MILLI, Shape
from calabash.sched.cluster.spec import GpuSpec, NodeSpec
from calabash.sched.policies.registry import policy_named
from calabash.sim import generate
from calabash.sim.arrivals import simulate
from calabash.sim.bound import allocation_bound, arrivals_bound
from calabash.sim.workload import TraceRequest, Workload, simple_node

WHOLE = Shape(cpu_milli=1000, gpu_count=1, gpu_milli=WHOLE_MILLI)


def node(name: str = "n", *, gpus: int = 4, cpu_milli: int = 100_000, model: str = "T4") -> NodeSpec:
    """Return a node with plenty of memory."""
    return simple_node(name=name, cpu_milli=cpu_milli, memory_mib=1 << 20, gpu_count=gpus, model=model)


def part(milli: int, *, cpu_milli: int = 0) -> Shape:
    """Return the shape of a share of one device."""
    return Shape(cpu_milli=cpu_milli, gpu_count=1, gpu_milli=milli)


def test_shares_that_cannot_be_combined_waste_the_rest_of_a_device() -> None:
    assert allocation_bound([node()], [part(810)] * 10, kept_until=0.0) == pytest.approx(0.81)


def test_shares_that_fill_a_device_waste_nothing() -> None:
    arrived = [part(810)] * 4 + [part(190)] * 4
    assert allocation_bound([node()], arrived, kept_until=0.0) == pytest.approx(1.0)


def test_free_bound_prefers_whole_devices_and_no_reject_bound_includes_waste() -> None:
    arrived = [part(810)] * 4 + [WHOLE] * 4
    assert allocation_bound([node()], arrived, kept_until=0.0) == pytest.approx(1.0)
    assert allocation_bound([node()], arrived, kept_until=0.81) == pytest.approx(0.81)


def test_bound_is_none_if_required_requests_do_not_fit() -> None:
    assert allocation_bound([node()], [part(810)] * 5, kept_until=10.0) is None


def test_bound_is_limited_by_cpu() -> None:
    assert allocation_bound([node(cpu_milli=2000)], [WHOLE] * 4, kept_until=0.0) == pytest.approx(0.5)


def test_request_for_a_model_is_placed_on_that_model_only() -> None:
    named = Shape(gpu_count=1, gpu_milli=WHOLE_MILLI, models=frozenset({"A10"}))
    nodes = [node("a"), node("b", model="A10", gpus=2)]
    assert allocation_bound(nodes, [named] * 9, kept_until=1.0) == pytest.approx(2 / 6)


def test_large_request_needs_a_node_with_enough_devices() -> None:
    large = Shape(gpu_count=8, gpu_milli=WHOLE_MILLI)
    assert allocation_bound([node(f"n{i}") for i in range(4)], [large], kept_until=0.0) == pytest.approx(0.0)


def test_blocks_of_devices_are_counted_per_node() -> None:
    three = Shape(gpu_count=3, gpu_milli=WHOLE_MILLI)
    assert allocation_bound([node("a"), node("b")], [three] * 4, kept_until=0.0) == pytest.approx(6 / 8)


def test_too_many_sizes_for_all_patterns_still_give_an_upper_bound() -> None:
    nodes = [node()]
    arrived = [part(milli) for milli in range(40, 900, 9)]
    found = allocation_bound(nodes, arrived, kept_until=0.0)
    assert found is not None
    workload = Workload(name="w", requests=tuple(TraceRequest(name=str(i), shape=s) for i, s in enumerate(arrived)))
    reached = simulate(nodes, workload, policy_named("bestfit"), seed=1).allocation_ratio_end
    assert reached <= found <= 1.0 + 1e-9


@settings(max_examples=examples(12), deadline=None)
@given(seed=st.integers(0, 10_000), policy=st.sampled_from(["bestfit", "pgb", "random"]))
def test_no_run_ever_exceeds_the_bound(seed: int, policy: str) -> None:
    nodes, workload = generate.cluster(12, seed), generate.workload(60, seed)
    reached = simulate(nodes, workload, policy_named(policy, demand=workload.demand, seed=seed), seed)
    assert reached.allocation_ratio_end <= arrivals_bound(nodes, workload, seed).free + 1e-9


def test_bound_of_a_cluster_without_devices_is_refused() -> None:
    workload = Workload(name="w", requests=(TraceRequest(name="r", shape=WHOLE),))
    with pytest.raises(CalabashError, match="no device"):
        arrivals_bound([node(gpus=0)], workload, 1)


def test_node_with_two_models_is_refused() -> None:
    mixed = NodeSpec(name="m", cpu_milli=1, memory_mib=1, gpus=(GpuSpec(model="A"), GpuSpec(model="B")))
    with pytest.raises(CalabashError, match="2 models"):
        allocation_bound([mixed], [WHOLE], kept_until=0.0)
