"""Placement where CPU is scarce: the openb workload ``default`` with more requests without devices than its CPU can carry.

The published protocol (``sim.arrivals``), with the requests without devices drawn anew, with replacement, from those of
``default``: 2,356 of them are as many as the published ``cpu250`` has (its file is not here), 2,720 are 2.5 times those of
``default`` and ask for more CPU than there is before all devices are asked for. Every seed is another draw and another
order. The same policy with no price on spare CPU, and ``fgd``, run beside ``pgb``. Counts in between, and the published
workloads, check that nothing is lost where CPU suffices. Costs are the thread's own processor time per decision.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev

import numpy as np

from bench._report import Report, run
from bench._traces import Traces, load
from calabash.sched.cluster.arrays import Cluster
from calabash.sched.cluster.engine import Engine
from calabash.sched.cluster.scoring import PlacementPolicy
from calabash.sched.cluster.shape import WHOLE_MILLI
from calabash.sched.cluster.spec import NodeSpec
from calabash.sched.policies.pgb import PgbPolicy, PgbWeights
from calabash.sched.policies.registry import policy_named
from calabash.sched.policies.spare import cpu_pressure
from calabash.sim.arrivals import Tally, arrival_order
from calabash.sim.bound import arrivals_bound
from calabash.sim.workload import TraceRequest, Workload

SCARCE = 2356
HOPELESS = 2720
BETWEEN = (1500, 1768, 2000, 2150, 2250)
ELSEWHERE = ("default", "cpu100", "gpushare40", "gpuspec10", "multigpu20")
SEEDS = tuple(range(42, 50))
FEW_SEEDS = (42, 43)
ALLOCATED_MIN = 95.0
LOST_POINTS_MAX = 0.1
COST_RATIO_MAX = 1.5
UNPRICED = PgbWeights(spare=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Result of one run, in percent, and the processor time of a decision.

    The percentages are of device compute allocated, of requests without devices admitted (by number and by vCPU), of 8-device
    requests refused, and of CPU left free.
    """

    allocated: float
    cpu_only: float
    cpu_only_vcpu: float
    large_refused: float
    cpu_free: float
    decision_us: float


def with_cpu_only(workload: Workload, count: int, seed: int) -> Workload:
    """Return the workload with ``count`` requests without devices, drawn with replacement from its own."""
    own = [request for request in workload.requests if not request.shape.gpu_count]
    drawn = np.random.default_rng(seed).integers(len(own), size=count).tolist()
    fresh = [TraceRequest(name=f"drawn-{at}", shape=own[index].shape) for at, index in enumerate(drawn)]
    kept = [request for request in workload.requests if request.shape.gpu_count]
    return Workload(name=f"{workload.name}-{count}", requests=(*kept, *fresh))


def outcome(nodes: Sequence[NodeSpec], workload: Workload, policy: PlacementPolicy, seed: int) -> Outcome:
    """Run the published protocol once."""
    cluster = Cluster(nodes, order_seed=seed)
    engine = Engine(cluster, policy)
    installed = WHOLE_MILLI * cluster.gpu_total
    shapes, tally = workload.shapes, Tally()
    asked = admitted = 0
    order = arrival_order(workload, installed, seed)
    began = time.thread_time()
    for index in order:
        shape = shapes[index]
        placement = engine.decide(shape)
        if placement is not None:
            cluster.place(shape, placement)
        tally.count(shape, admitted=placement is not None)
        if not shape.gpu_count:
            asked += shape.cpu_milli
            admitted += shape.cpu_milli * (placement is not None)
    spent = time.thread_time() - began
    ratios = tally.ratios()
    return Outcome(
        allocated=100 * (1 - int(cluster.gpu_sum_milli.sum()) / installed),
        cpu_only=100 * ratios["cpu_only_admitted_ratio"],
        cpu_only_vcpu=100 * admitted / asked if asked else 100.0,
        large_refused=100 * ratios["rejected_8gpu_ratio"],
        cpu_free=100 * int(cluster.cpu_free_milli.sum()) / int(cluster.cpu_milli.sum()),
        decision_us=1e6 * spent / len(order),
    )


def made(name: str, workload: Workload, seed: int) -> PlacementPolicy:
    """Return a policy by name; ``... unpriced`` is the same without a price on spare CPU."""
    base, _, without = name.partition(" ")
    if not without:
        return policy_named(name, demand=workload.demand, seed=seed)
    return PgbPolicy(demand=workload.demand if base == "pgb" else None, weights=UNPRICED, name=name)


def outcomes(
    nodes: Sequence[NodeSpec], workload: Workload, count: int, policies: Sequence[str], seeds: Sequence[int]
) -> dict[str, list[Outcome]]:
    """Run every policy on the same draws and orders; ``count`` 0 takes the workload as it is."""
    found: dict[str, list[Outcome]] = {policy: [] for policy in policies}
    for seed in seeds:
        drawn = with_cpu_only(workload, count, seed) if count else workload
        for policy in policies:
            found[policy].append(outcome(nodes, drawn, made(policy, drawn, seed), seed))
    return found


def mean(runs: Sequence[Outcome], name: str) -> float:
    """Return the mean of one figure over the seeds."""
    return fmean(float(getattr(one, name)) for one in runs)


def measure(report: Report) -> None:
    """Measure all; the short form takes one seed at one count."""
    traces = load(report, ("default",) if report.quick else ELSEWHERE)
    workload = next(iter(traces.workloads.values()))
    seeds = SEEDS[:1] if report.quick else SEEDS
    report.fact("seeds", " ".join(str(seed) for seed in seeds))
    own = sum(not request.shape.gpu_count for request in workload.requests)
    if not traces.published:
        report_scarce(report, traces, workload, 4 * own, seeds)
        return
    report_scarce(report, traces, workload, SCARCE, seeds)
    if report.quick:
        return
    report_scarce(report, traces, workload, HOPELESS, seeds[:5], with_goals=False)
    for count in BETWEEN:
        report_between(report, traces, workload, count)
    for name, other in traces.workloads.items():
        report_elsewhere(report, traces, name, other)


def report_scarce(
    report: Report, traces: Traces, workload: Workload, count: int, seeds: Sequence[int], *, with_goals: bool = True
) -> None:
    """Report one count: requests admitted, capacity left and cost of a decision."""
    goals = with_goals and traces.published and not report.quick  # one seed scatters too much
    found = outcomes(traces.nodes, workload, count, ("pgb", "pgb-online", "pgb unpriced", "fgd"), seeds)
    drawn = with_cpu_only(workload, count, seeds[0])
    pressure = 100 * cpu_pressure(drawn.demand, Cluster(traces.nodes))
    fgd, plain = found["fgd"], found["pgb unpriced"]
    for policy, runs in found.items():
        scatter = f"+-{pstdev([one.allocated for one in runs]):.2f}, least {min(one.allocated for one in runs):.2f}"
        label = f"{count} {policy}"
        ours = goals and policy in ("pgb", "pgb-online")
        report.add(
            f"{label}: allocated",
            mean(runs, "allocated"),
            "%",
            at_least=ALLOCATED_MIN if ours else None,
            detail=f"{scatter}, CPU asked for {pressure:.0f} %",
        )
        report.add(f"{label}: CPU-only admitted", mean(runs, "cpu_only"), "%")
        report.add(f"{label}: vCPU of them admitted", mean(runs, "cpu_only_vcpu"), "%")
        report.add(f"{label}: 8-GPU refused", mean(runs, "large_refused"), "%")
        report.add(f"{label}: CPU left free", mean(runs, "cpu_free"), "%")
        if policy.startswith("pgb") and policy != "pgb unpriced":
            more = mean(runs, "cpu_only") - mean(fgd, "cpu_only")
            report.add(f"{label}: CPU-only, more than fgd", more, "points", at_least=0 if ours else None)
            more = mean(runs, "allocated") - mean(plain, "allocated")
            report.add(f"{label}: allocated, more than unpriced", more, "points", at_least=0 if ours else None)
    cost = mean(found["pgb"], "decision_us")
    report.add(
        f"{count} pgb: cost of a decision to unpriced",
        cost / mean(plain, "decision_us"),
        "times",
        at_most=COST_RATIO_MAX if goals else None,
        detail=f"{cost:.0f} us of own processor time",
    )
    bound = arrivals_bound(traces.nodes, drawn, seeds[0])
    if bound.no_reject is not None:
        report.add(f"{count}: most anybody could allocate", 100 * bound.no_reject, "%")


def report_between(report: Report, traces: Traces, workload: Workload, count: int) -> None:
    """Report a count at which CPU is tight but not exhausted."""
    found = outcomes(traces.nodes, workload, count, ("pgb", "pgb unpriced", "fgd"), FEW_SEEDS)
    priced, plain, fgd = found["pgb"], found["pgb unpriced"], found["fgd"]
    report.add(
        f"{count} pgb: allocated, more than unpriced",
        mean(priced, "allocated") - mean(plain, "allocated"),
        "points",
        at_least=-LOST_POINTS_MAX,
        detail=f"{mean(priced, 'allocated'):.2f} %, fgd {mean(fgd, 'allocated'):.2f}",
    )
    report.add(
        f"{count} pgb: CPU-only, more than fgd",
        mean(priced, "cpu_only") - mean(fgd, "cpu_only"),
        "points",
        at_least=0,
        detail=f"{mean(priced, 'cpu_only'):.2f} %, unpriced {mean(plain, 'cpu_only'):.2f}",
    )


def report_elsewhere(report: Report, traces: Traces, name: str, workload: Workload) -> None:
    """Report a published workload, where CPU suffices."""
    policies = ("pgb", "pgb unpriced", "pgb-online", "pgb-online unpriced")
    found = outcomes(traces.nodes, workload, 0, policies, FEW_SEEDS)
    for policy in ("pgb", "pgb-online"):
        priced, plain = found[policy], found[f"{policy} unpriced"]
        report.add(
            f"{name} {policy}: allocated, more than unpriced",
            mean(priced, "allocated") - mean(plain, "allocated"),
            "points",
            at_least=-LOST_POINTS_MAX,
            detail=f"{mean(priced, 'allocated'):.2f} %, CPU-only {mean(priced, 'cpu_only'):.2f}",
        )


if __name__ == "__main__":
    run("cpu_scarce", "Placement where CPU is scarce", measure)
