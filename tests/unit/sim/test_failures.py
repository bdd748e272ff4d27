"""Tests of failures of nodes: random by seed, they end requests on the node, and the node recovers."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from calabash.model.errors import CalabashError
from calabash.sched.cluster.shape import Shape
from calabash.sched.policies.registry import policy_named
from calabash.sim import churn
from calabash.sim.failures import Failures, draw
from calabash.sim.results import RunResult
from calabash.sim.workload import TraceRequest, Workload, simple_node

NODES = [simple_node(name=f"n{i}", cpu_milli=96_000, memory_mib=400_000, gpu_count=8, model="A100") for i in range(20)]
SHAPES = (
    Shape(cpu_milli=4000, memory_mib=8000, gpu_count=1, gpu_milli=500),
    Shape(cpu_milli=8000, memory_mib=16000, gpu_count=1, gpu_milli=1000),
    Shape(cpu_milli=32000, memory_mib=64000, gpu_count=4, gpu_milli=1000),
)
WORKLOAD = Workload(name="w", requests=tuple(TraceRequest(name=str(i), shape=SHAPES[i % 3]) for i in range(30)))


@settings(max_examples=examples(50), deadline=None)
@given(seed=st.integers(0, 10_000), rate=st.floats(1, 500), outage=st.floats(0.01, 2))
def test_failed_node_recovers_before_it_fails_again(seed: int, rate: float, outage: float) -> None:
    changes = draw(Failures(per_100_nodes=rate, outage_lifetimes=outage), 7, 10.0, seed)
    assert all(a.at <= b.at for a, b in pairwise(changes))
    for row in range(7):
        ups = [change.up for change in changes if change.row == row]
        assert ups == [i % 2 == 1 for i in range(len(ups))]
        assert len(ups) % 2 == 0


def test_no_failures_change_nothing() -> None:
    plain = churn.simulate(NODES, WORKLOAD, policy_named("bestfit"), 3, load=0.8, defragment=False)
    without = churn.simulate(
        NODES, WORKLOAD, policy_named("bestfit"), 3, load=0.8, defragment=False, failures=Failures(per_100_nodes=0.0)
    )
    assert plain.allocation_ratio_end == without.allocation_ratio_end
    assert without.killed_per_100_arrivals == 0


@pytest.mark.parametrize("defragment", [False, True])
def test_failures_end_requests_reduce_allocation_and_depend_on_the_seed_only(defragment: bool) -> None:
    def run(failures: Failures | None) -> RunResult:
        return churn.simulate(
            NODES, WORKLOAD, policy_named("bestfit"), 3, load=0.9, defragment=defragment, failures=failures
        )

    broken, again, whole = run(Failures(per_100_nodes=100.0)), run(Failures(per_100_nodes=100.0)), run(None)
    assert broken.killed_per_100_arrivals > 0
    assert broken.allocation_ratio_end < whole.allocation_ratio_end
    assert (broken.allocation_ratio_end, broken.killed_per_100_arrivals) == (
        again.allocation_ratio_end,
        again.killed_per_100_arrivals,
    )
    assert broken.arrivals == whole.arrivals


@pytest.mark.parametrize(("rate", "outage"), [(-1.0, 0.1), (1e9, 0.1), (1.0, 0.0), (1.0, -2.0)])
def test_invalid_failure_rates_are_refused(rate: float, outage: float) -> None:
    with pytest.raises(CalabashError) as caught:
        Failures(per_100_nodes=rate, outage_lifetimes=outage)
    assert caught.value.hint
