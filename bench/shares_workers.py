"""Compute shares of programs that have a worker instead of a driver, compared with the same programs with a driver.

Pairs that together ask for the whole card, in rounds: once with workers (isolation ``brokered``, and as with a remote card),
once without, so that other load of the machine affects both. Card time is the simulator's time per process. The
split is of the time that the card has worked; the time that it was idle is in ``card used``. It is not in virtual time: program
and worker wake each other, and the virtual clock supports only sleep.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from bench._lab import Lab
from bench._report import Report, run
from bench._workers import WorkerLab
from bench.shares import ERROR_POINTS, OF_SHARE_PERCENT, SETTLE_S, SHAPES, WINDOW_S, Meter, Shape

WINDOWS = 2  # of each round
Rows = Mapping[type[Lab], list[list[float]]]


def measure(report: Report) -> None:
    """Measure all."""
    rounds = 2 if report.quick else 6
    report.fact("card", "simulated A100-40GB")
    report.fact(
        "windows", f"{rounds} rounds of {WINDOWS} of {WINDOW_S:g} s for each figure, with and without workers in turn"
    )
    for shares in ((70, 30), (50, 50)):
        for shape in (shape for shape in SHAPES[:3] if not report.quick or shape.name == "1ms"):
            rows: Rows = {Lab: [], WorkerLab: []}
            for _ in range(rounds):
                for kind, seen in rows.items():
                    with kind() as lab:
                        seen.extend(_pair(lab, shares, shape))
            _report_pair(report, f"{shares[0]}/{shares[1]} {shape.name}", shares, rows)


def _pair(lab: Lab, shares: Sequence[int], shape: Shape) -> list[list[float]]:
    meter = Meter(lab)
    for name, percent in zip("ab", shares, strict=True):
        lab.slot(name, core_percent=percent)
    groups = [meter.start(name, shape, WINDOWS * WINDOW_S + SETTLE_S + 2) for name in "ab"]
    return meter.windows(groups, WINDOWS)


def _report_pair(report: Report, title: str, shares: Sequence[int], rows: Rows) -> None:
    got = {kind: [statistics.fmean(row[i] for row in seen) for i in range(2)] for kind, seen in rows.items()}
    split = {kind: found[0] / max(sum(found), 1e-9) * 100 for kind, found in got.items()}
    theirs, own = ("/".join(f"{value:.1f}" for value in got[kind]) for kind in (WorkerLab, Lab))
    error = statistics.fmean(abs(value - asked) for value, asked in zip(got[WorkerLab], shares, strict=True))
    detail = f"got {theirs}; with a driver of their own {own}"
    report.add(f"{title}: error", error, "points", at_most=ERROR_POINTS, detail=detail)
    report.add(f"{title}: error of the split", abs(split[WorkerLab] - shares[0]), "points", at_most=ERROR_POINTS)
    off = abs(split[WorkerLab] - split[Lab])
    report.add(f"{title}: off the split without workers", off, "points", at_most=ERROR_POINTS)
    over = max(row[i] - shares[i] for row in rows[WorkerLab] for i in range(2))
    report.add(f"{title}: most over a share in a window", over, "points", at_most=ERROR_POINTS)
    used = sum(got[WorkerLab]) / max(sum(got[Lab]), 1e-9) * 100
    report.add(f"{title}: card used, of that without workers", used, "%", at_least=OF_SHARE_PERCENT)


if __name__ == "__main__":
    run("shares_workers", "Compute shares through workers", measure)
