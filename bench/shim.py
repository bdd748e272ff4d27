"""What the shim adds to a call, on the simulated driver (or a real one): the same program with and without it.

Runs alternate between the variants, so that a change of the machine hits all alike; each run gives the median of
hundreds of batches, and the figure is the difference of the medians over the runs. *Pass-through* is a call that the
shim does not limit, looked up as programs do, or a launch under no compute limit; *launch* is one under a limit that
is in force and not reached (burst, nobody else there). Start-up is the whole program's, from exec to exit.
"""

from __future__ import annotations

import statistics
import subprocess
import threading
import time
from typing import Any

from bench._lab import KERNELS, Lab, program
from bench._report import Report, run
from calabash.model.request import ComputePolicy

PASS_THROUGH_NS = 20.0
LAUNCH_NS = 20.0
ALLOCATION_NS = 60.0
START_MS = 2.0
MANY = 16


def _runs(
    lab: Lab, variants: tuple[str | None, ...], count: int, rounds: int
) -> dict[str | None, list[dict[str, Any]]]:
    results: dict[str | None, list[dict[str, Any]]] = {variant: [] for variant in variants}
    for _ in range(count):
        for variant in variants:
            results[variant].append(lab.start(variant, "calls", "--kernels", KERNELS, "--rounds", rounds).result())
    return results


def measure_calls(report: Report, lab: Lab) -> None:
    """Nanoseconds added per call."""
    lab.slot("tracked", core_percent=50, policy=ComputePolicy.BURST, memory_limit_bytes=8 << 30)
    lab.slot("whole", policy=None, memory_limit_bytes=8 << 30)
    lab.slot("seen", policy=None)
    results = _runs(lab, (None, "tracked", "whole", "seen"), 5 if report.quick else 15, 150 if report.quick else 400)

    def median(variant: str | None, kind: str) -> float:
        return statistics.median(float(result[kind]) for result in results[variant])

    for name, variant, kind, goal in (
        ("pass-through call adds", "tracked", "pass_through", PASS_THROUGH_NS),
        ("pass-through call (attribute) adds", "tracked", "attribute", PASS_THROUGH_NS),
        ("launch under no compute limit adds", "whole", "launch", PASS_THROUGH_NS),
        ("launch in a slice without limits adds", "seen", "launch", PASS_THROUGH_NS),
        ("allocation in a slice without limits adds", "seen", "allocation", PASS_THROUGH_NS),
        ("launch, limited and not throttled, adds", "tracked", "launch", LAUNCH_NS),
        ("allocation adds", "tracked", "allocation", ALLOCATION_NS),
        ("memory info adds", "tracked", "memory_info", ALLOCATION_NS),
    ):
        plain, with_shim = median(None, kind), median(variant, kind)
        detail = f"{plain:.1f} -> {with_shim:.1f} ns, ratio {with_shim / plain:.3f}"
        report.add(name, with_shim - plain, "ns", at_most=goal, detail=detail)


def measure_start(report: Report, lab: Lab) -> None:
    """Milliseconds added to a whole program, alone and many at once."""
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

    for name, take, count in (("alone", once, 30), (f"{MANY} at once, per program", many, 6)):
        plain, with_shim = [], []
        for _ in range(count // 3 if report.quick else count):
            plain.append(take(None))
            with_shim.append(take("tracked"))
        added = statistics.median(with_shim) - statistics.median(plain)
        detail = f"{statistics.median(plain):.1f} -> {statistics.median(with_shim):.1f} ms"
        report.add(f"start-up added, {name}", added, "ms", at_most=START_MS, detail=detail)


def measure(report: Report) -> None:
    """All of it."""
    with Lab() as lab:
        report.fact("card", "real" if lab.real else "simulated A100-40GB")
        measure_calls(report, lab)
        measure_start(report, lab)


if __name__ == "__main__":
    run("shim", "What the shim adds to a call", measure)
