"""Placement where CPU is scarce and requests depart: the price of spare CPU may cost nothing there.

The workload of ``cpu_scarce`` (2,356 requests without devices, every seed another draw) as Poisson arrivals with exponential
lifetimes at load 0.95: four lifetimes from an empty cluster, then six are measured. The same arrivals go to ``pgb``, to the
same policy with no price on spare CPU, and with the first seeds to ``fgd``.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, pstdev

from bench._report import Report, run
from bench._traces import Traces, load
from bench.cpu_scarce import LOST_POINTS_MAX, SCARCE, made, with_cpu_only
from calabash.sim.churn import simulate
from calabash.sim.results import RunResult
from calabash.sim.workload import Workload

LOAD = 0.95
SEEDS = tuple(range(11, 19))
FGD_SEEDS = 2
FIGURES = {
    "allocated": "allocation_ratio_end",
    "CPU-only admitted": "cpu_only_admitted_ratio",
    "8-GPU refused": "rejected_8gpu_ratio",
}


def percents(runs: Sequence[RunResult], field: str) -> list[float]:
    """Return one figure of every run, in percent."""
    return [100 * float(getattr(one, field)) for one in runs]


def measure(report: Report) -> None:
    """Measure all; the short form takes one seed and no ``fgd``."""
    traces = load(report, ("default",))
    workload = next(iter(traces.workloads.values()))
    seeds = SEEDS[:1] if report.quick else SEEDS
    report.fact("seeds", " ".join(str(seed) for seed in seeds))
    count = SCARCE if traces.published else 4 * sum(not request.shape.gpu_count for request in workload.requests)
    found = {
        policy: [one(traces, workload, count, policy, seed) for seed in some]
        for policy, some in (
            ("pgb", seeds),
            ("pgb unpriced", seeds),
            ("fgd", seeds[: 0 if report.quick else FGD_SEEDS]),
        )
    }
    for policy, runs in found.items():
        for name, field in FIGURES.items():
            if runs:
                scatter = f"+-{pstdev(percents(runs, field)):.2f} over {len(runs)} seeds"
                report.add(f"{policy}: {name}", fmean(percents(runs, field)), "%", detail=scatter)
    goal = -LOST_POINTS_MAX if traces.published and not report.quick else None  # one seed scatters too much
    report_more(report, "unpriced", found["pgb"], found["pgb unpriced"], goal)
    if found["fgd"]:
        report_more(report, "fgd", found["pgb"][:FGD_SEEDS], found["fgd"], None)


def one(traces: Traces, workload: Workload, count: int, policy: str, seed: int) -> RunResult:
    """Run one policy with one seed."""
    drawn = with_cpu_only(workload, count, seed)
    return simulate(traces.nodes, drawn, made(policy, drawn, seed), seed, load=LOAD, defragment=False)


def report_more(
    report: Report, other: str, mine: Sequence[RunResult], theirs: Sequence[RunResult], goal: float | None
) -> None:
    """Report the mean difference over the seeds; the detail has that of each seed."""
    for name in ("allocated", "CPU-only admitted"):
        pairs = zip(percents(mine, FIGURES[name]), percents(theirs, FIGURES[name]), strict=True)
        more = [ours - his for ours, his in pairs]
        each = " ".join(f"{points:+.2f}" for points in more)
        report.add(f"pgb: {name}, more than {other}", fmean(more), "points", at_least=goal, detail=each)


if __name__ == "__main__":
    run("cpu_scarce_departures", "Placement where CPU is scarce and requests depart", measure)
