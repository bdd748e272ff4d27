"""Every sharing mode: cost of starts and of mode changes, and accuracy of the limits.

A section for each mode, with what only that mode has; ``modes_NAME`` modules hold those that are long.
"""

from __future__ import annotations

import gc
import random

from bench._mig_demand import Quality, follow
from bench._reference import CPU_UNIT, cpu_unit_s
from bench._report import Report, run
from bench.modes_ends import measure_ends
from bench.modes_health import measure_faults
from bench.modes_mig import measure_mig_node
from bench.modes_mps import measure_mps
from bench.modes_passthrough import measure_passthrough
from bench.modes_spill import measure_spill
from calabash.sched.cluster.mig_tables import GEOMETRIES

PLACED_AT_LEAST = 0.99
DESTROYED_AT_MOST = 1.1
DECISION_UNITS = 10.0


def measure_mig_plan(report: Report) -> None:
    """Compare the planner with an exhaustive search, over random demand on every kind of card; times in CPU units."""
    quality = Quality()
    sequences = 200 if report.quick else 1000
    cards = sorted(GEOMETRIES)
    gc.collect()
    before_s = cpu_unit_s()
    gc.disable()  # a garbage collection that walks through the search's memory would count as the planner's time
    for number in range(sequences):
        follow(GEOMETRIES[cards[number % len(cards)]], random.Random(number), quality)
    gc.enable()
    unit_ms = 1e3 * (before_s + cpu_unit_s()) / 2
    detail = f"{sequences} sequences, {quality.asked} requests, {len(quality.seconds)} decisions"
    report.add(
        "mig: placed of what an exhaustive search places",
        quality.placed / quality.placed_best,
        "ratio",
        at_least=PLACED_AT_LEAST,
        detail=detail,
    )
    report.add(
        "mig: destroyed of the fewest possible",
        quality.destroyed / max(1, quality.destroyed_best),
        "ratio",
        at_most=DESTROYED_AT_MOST,
        detail=f"{quality.destroyed} of {quality.destroyed_best}",
    )
    times = sorted(quality.seconds)
    name = "mig: worst decision"
    report.add_ratio(name, times[-1] * 1000, unit_ms, "ms", of=CPU_UNIT, at_most=DECISION_UNITS)
    report.add("mig: median decision", times[len(times) // 2] * 1000, "ms")


SECTIONS = (
    measure_mig_plan,
    measure_mig_node,
    measure_mps,
    measure_faults,
    measure_ends,
    measure_passthrough,
    measure_spill,
)


def measure(report: Report) -> None:
    """Measure all sections; a section that cannot be measured here prints the reason."""
    for section in SECTIONS:
        try:
            section(report)
        except Exception as error:  # whatever it needs and does not find
            report.fact(section.__name__, f"not measured: {type(error).__name__}: {error}")


if __name__ == "__main__":
    run("modes", "Sharing modes", measure)
