"""Tests of protocol churn: results agree with queueing theory, and moves lose no request."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from calabash.sched.cluster.shape import WHOLE_MILLI, Shape
from calabash.sched.cluster.spec import NodeSpec
from calabash.sched.policies.registry import policy_named
from calabash.sim import churn, generate
from calabash.sim.arrivals import Tally
from calabash.sim.churn import WARM_LIFETIMES, _Measure, simulate
from calabash.sim.results import RunResult
from calabash.sim.workload import TraceRequest, Workload, simple_node

WHOLE = Shape(gpu_count=1, gpu_milli=WHOLE_MILLI)
EIGHT = Shape(gpu_count=8, gpu_milli=WHOLE_MILLI)


def workload_of(*shapes: Shape) -> Workload:
    """Return a workload with one request of each shape."""
    return Workload(name="w", requests=tuple(TraceRequest(name=str(i), shape=s) for i, s in enumerate(shapes)))


def nodes(count: int) -> list[NodeSpec]:
    """Return nodes with eight devices each."""
    return [
        simple_node(name=f"n{i}", cpu_milli=96_000, memory_mib=1 << 20, gpu_count=8, model="G2") for i in range(count)
    ]


def test_low_load_is_allocated_completely_and_nothing_is_rejected() -> None:
    result = simulate(nodes(60), workload_of(WHOLE), policy_named("bestfit"), 1, load=0.5, defragment=False)
    assert result.allocation_ratio_end == pytest.approx(0.5, abs=0.04)  # Little's law
    assert result.rejected_milli_ratio == 0
    assert result.arrivals == pytest.approx(0.5 * 480 * churn.MEASURED_LIFETIMES, rel=0.1)


def test_high_load_fills_the_cluster_and_the_excess_is_rejected() -> None:
    result = simulate(nodes(20), workload_of(WHOLE), policy_named("bestfit"), 1, load=3.0, defragment=False)
    assert result.allocation_ratio_end > 0.98
    assert result.rejected_milli_ratio == pytest.approx(2 / 3, abs=0.05)


def test_loss_on_one_device_follows_the_erlang_formula() -> None:
    one = [simple_node(name="n", cpu_milli=1000, memory_mib=1000, gpu_count=1, model="G2")]
    results = [
        simulate(one, workload_of(WHOLE), policy_named("bestfit"), s, load=1.0, defragment=False) for s in range(300)
    ]
    refused = sum(r.rejected_milli_ratio * r.arrivals for r in results) / sum(r.arrivals for r in results)
    assert refused == pytest.approx(0.5, abs=0.05)  # B(1, 1) = 1/2


def test_warm_up_is_not_counted() -> None:
    measure = _Measure(tally=Tally())
    measure.used_milli = 500
    measure.advance(WARM_LIFETIMES - 1)
    measure.arrival(WHOLE, WARM_LIFETIMES - 0.5, admitted=False, moved=3)
    measure.advance(WARM_LIFETIMES + 2)
    measure.used_milli = 1000
    measure.advance(WARM_LIFETIMES + 3)
    measure.arrival(WHOLE, WARM_LIFETIMES + 3, admitted=True, moved=1)
    measure.arrival(EIGHT, WARM_LIFETIMES + 3, admitted=False, moved=0)
    empty = RunResult(workload="w", policy="p", seed=1, protocol="churn", arrivals=0, allocation_ratio_end=0)
    result = measure.result(empty, 1000, WARM_LIFETIMES + 4)
    assert result.allocation_ratio_end == pytest.approx((2 * 500 + 1000) / 1000 / 4)
    assert (result.arrivals, result.moves_per_100_arrivals, result.rejected_8gpu_ratio) == (2, 50.0, 1.0)
    assert result.rejected_milli_ratio == pytest.approx(8 / 9)


@settings(max_examples=examples(6), deadline=None)
@given(seed=st.integers(0, 1000), load=st.sampled_from([0.7, 0.95, 1.2]), policy=st.sampled_from(["pgb", "bestfit"]))
def test_moves_never_lose_or_overcommit_a_request(seed: int, load: float, policy: str) -> None:
    """The arrays of the cluster refuse every invalid placement and release."""
    cluster, workload = generate.cluster(10, seed), generate.workload(60, seed)
    made = policy_named(policy, demand=workload.demand)
    result = simulate(cluster, workload, made, seed, load=load, defragment=True)
    assert 0 <= result.allocation_ratio_end <= 1
    assert 0 <= result.rejected_milli_ratio < 1
    assert result.moves_per_100_arrivals <= 100 * churn.MOVES_MAX
