"""Cost of the preloaded library for a call, on the simulated driver (or a real one): the same program with and without it.

Runs alternate between the variants; each run gives the median of hundreds of batches. A figure is the median, over the
rounds, of the ratio between a variant's run and the run without the library of the same round, so that a change of the
machine affects both. *Pass-through* is a call that the library does not limit, looked up as programs do; *free* is a call in
a slice without that limit; *limited* is a launch under a compute limit that is in force and not reached (burst, no other
tenant). The start-up is that of the whole program, from exec to exit.
"""

from __future__ import annotations

import statistics
import subprocess
import threading
import time
from functools import partial
from typing import Any

from bench._lab import KERNELS, Lab, program
from bench._reference import alternate
from bench._report import Report, run
from calabash.model.request import ComputePolicy

# Goals: ratios to the same call, or the same program, without the library.
PASS_THROUGH = 1.05
FREE = 1.10
LIMITED = 1.20
ALLOCATION = 1.60
FREE_ALLOCATION = 1.20
MEMORY_INFO = 1.25
START = 1.60
MANY = 16
FIGURES = (  # name, slot, kind of call, goal
    ("pass-through call", "tracked", "pass_through", PASS_THROUGH),
    ("pass-through call (attribute)", "tracked", "attribute", PASS_THROUGH),
    ("launch under no compute limit", "whole", "launch", FREE),
    ("launch in a slice without limits", "seen", "launch", FREE),
    ("allocation in a slice without limits", "seen", "allocation", FREE_ALLOCATION),
    ("launch, limited and not throttled", "tracked", "launch", LIMITED),
    ("allocation", "tracked", "allocation", ALLOCATION),
    ("memory info", "tracked", "memory_info", MEMORY_INFO),
)
Results = dict[str | None, list[dict[str, Any]]]  # runs of each variant in order; None is without the library


def _runs(lab: Lab, variants: tuple[str | None, ...], count: int, rounds: int) -> Results:
    results: Results = {variant: [] for variant in variants}
    for _ in range(count):
        for variant in variants:
            results[variant].append(lab.start(variant, "calls", "--kernels", KERNELS, "--rounds", rounds).result())
    return results


def measure_calls(report: Report, lab: Lab) -> None:
    """Ratio of each kind of call to the same call without the library."""
    lab.slot("tracked", core_percent=50, policy=ComputePolicy.BURST, memory_limit_bytes=8 << 30)
    lab.slot("whole", policy=None, memory_limit_bytes=8 << 30)
    lab.slot("seen", policy=None)
    add_calls(report, _runs(lab, (None, "tracked", "whole", "seen"), 7 if report.quick else 15, 400))


def add_calls(report: Report, results: Results) -> None:
    """Record the figures of alternating runs."""
    for name, variant, kind, goal in FIGURES:
        ours, without = ([float(run[kind]) for run in results[one]] for one in (variant, None))
        added = statistics.median(a - b for a, b in zip(ours, without, strict=True))
        report.add_ratio(
            name, ours, without, "ns", of="without the library", at_most=goal, detail=f"adds {added:.1f} ns"
        )


def measure_start(report: Report, lab: Lab) -> None:
    """Ratio of a whole program's time to that without the library, alone and many at once."""
    path = str(program("calls"))
    command = [path, "--kernels", str(KERNELS), "--rounds", "1"]

    def once(variant: str | None) -> float:
        began = time.perf_counter()
        subprocess.run(command, env=lab.environment(variant), stdout=subprocess.DEVNULL, check=True)
        return (time.perf_counter() - began) * 1000

    def many(variant: str | None) -> float:
        threads = [threading.Thread(target=once, args=(variant,)) for _ in range(MANY)]
        began = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return (time.perf_counter() - began) * 1000 / MANY

    for name, take, count in (("alone", once, 30), (f"{MANY} at once, per program", many, 12)):
        ours, without = alternate(partial(take, "tracked"), partial(take, None), count // 2 if report.quick else count)
        report.add_ratio(f"start-up, {name}", ours, without, "ms", of="without the library", at_most=START)


def measure(report: Report) -> None:
    """Measure all."""
    with Lab() as lab:
        report.fact("card", "real" if lab.real else "simulated A100-40GB")
        measure_calls(report, lab)
        measure_start(report, lab)


if __name__ == "__main__":
    run("shim", "Cost of the preloaded library for a call", measure)
