"""Compute shares: requested shares of tenants against the card time that they got.

One tenant at 10, 30, 50 and 80 percent, pairs that fill the card, eight processes in one tenant, kernels of 0.1 to
100 ms and graphs; then idle time that is lent, and how fast it comes back; then the share of an honest tenant beside kernels of
seconds and beside a forged page. Card time is the simulator's time per process; on a real card it is the work that the
programs saw completed, with kernels calibrated alone beforehand.

On the simulated card everything runs in virtual time (``bench._virtual``), with the library and the arbiter as they are: the
figures depend neither on the speed of the machine nor on its other load.
"""

from __future__ import annotations

import datetime
import itertools
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tests.native.misreport_world import MisreportLab

from bench._lab import Lab, Tenant, real_card
from bench._report import Report, run
from bench._virtual import VirtualLab
from calabash.model.request import ComputePolicy

WINDOW_S = 1.0
SETTLE_S = 0.6
DROPPED_S = 0.3  # the arbiter looks for slots every 0.1 s
ERROR_POINTS = 2.0
OF_SHARE_PERCENT = 97.0
RATIO_ERROR_PERCENT = 3.0
GIVE_BACK_MS = 20.0
GIVE_BACK_WORST_MS = 30.0  # by the phase of the rounds, which are 20 ms long
RETURN_WINDOW_NS = 10_000_000
RETURN_WINDOWS = 15
LENDER_PART = 0.7
LONG_WINDOWS = 30  # shares beside kernels of seconds are those of windows of 30 s, one beginning each second
LONG_US = 2_000_000
LONG_BEGIN = 25  # the first kernels are of unknown length; the time that they took is paid back by then
LONG_POINTS = 3.5  # a kernel of 2 s at the end of a window is half paid back: 3.3 points of 30 s


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Form of a tenant's launches: kernel length, kernels in a graph, processes."""

    name: str
    kernel_us: float
    graph: int = 0
    processes: int = 1


SHAPES = (
    Shape(name="0.1ms", kernel_us=100),
    Shape(name="1ms", kernel_us=1_000),
    Shape(name="10ms", kernel_us=10_000),
    Shape(name="100ms", kernel_us=100_000),
    Shape(name="graph", kernel_us=100, graph=10),
    Shape(name="8procs-1ms", kernel_us=1_000, processes=8),
    Shape(name="8procs-10ms", kernel_us=10_000, processes=8),
)
QUICK = ("0.1ms", "10ms", "8procs-1ms")


class Meter:
    """Starts tenants on one card and reads the card time that they got."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self._iterations_per_us = self._calibrate() if lab.real else 0.0

    def _calibrate(self) -> float:
        iterations = 1_000_000
        tenant = self.lab.load(None, "--iterations", iterations, "--kernel-us", 1_000, "--seconds", 2)
        result = tenant.result()
        return float(iterations * result["launches"] / (result["ended_ns"] - result["began_ns"]) * 1_000)

    def start(self, slot: str | None, shape: Shape, seconds: float, *more: object) -> list[Tenant]:
        """Start the processes of one tenant, to run for ``seconds``."""
        arguments: list[object] = ["--kernel-us", shape.kernel_us, "--seconds", seconds, "--graph", shape.graph, *more]
        if self.lab.real:
            arguments += ["--iterations", int(shape.kernel_us * self._iterations_per_us)]
        return [self.lab.load(slot, *arguments) for _ in range(shape.processes)]

    def drop(self, *names: str) -> None:
        """Remove slots and let the arbiter notice it, because it keeps the debt of an allocation of the same name."""
        for name in names:
            self.lab.drop_slot(name)
        self.lab.sleep(DROPPED_S)

    def windows(self, groups: Sequence[Sequence[Tenant]], count: int, settle_s: float = SETTLE_S) -> list[list[float]]:
        """Return each group's part of the card in each window, in percent; kill the tenants."""
        self.lab.sleep(settle_s)
        if self.lab.real:
            self.lab.sleep(count * WINDOW_S)
            return _windows_of_series(groups, count, settle_s)
        result = []
        before_ns, before = self.lab.busy_ns()
        for _ in range(count):
            self.lab.sleep(WINDOW_S)
            after_ns, after = self.lab.busy_ns()
            elapsed = after_ns - before_ns
            result.append(
                [sum(after.get(t.pid, 0) - before.get(t.pid, 0) for t in group) / elapsed * 100 for group in groups]
            )
            before_ns, before = after_ns, after
        for tenant in (t for group in groups for t in group):
            tenant.kill()
        return result


def _windows_of_series(groups: Sequence[Sequence[Tenant]], count: int, settle_s: float) -> list[list[float]]:
    results = [[tenant.result() for tenant in group] for group in groups]
    begin = max(r["began_ns"] for group in results for r in group) + int(settle_s * 1e9)
    edges = [begin + int(i * WINDOW_S * 1e9) for i in range(count + 1)]
    rows = []
    for start, end in itertools.pairwise(edges):
        row = []
        for group in results:
            work = sum(
                (_completed(r["series"], end) - _completed(r["series"], start)) * r["work_ns"] / max(1, r["launches"])
                for r in group
            )
            row.append(work / (end - start) * 100)
        rows.append(row)
    return rows


def _completed(series: Sequence[Sequence[int]], at_ns: int) -> float:
    """Return the launches completed at a time, interpolated."""
    previous = series[0]
    for point in series:
        if point[0] >= at_ns:
            span = point[0] - previous[0]
            return previous[1] + (point[1] - previous[1]) * ((at_ns - previous[0]) / span if span else 0)
        previous = point
    return previous[1]


def _wanted(report: Report) -> Iterable[Shape]:
    return (shape for shape in SHAPES if not report.quick or shape.name in QUICK)


def _settle_s(shape: Shape) -> float:
    """Return the time to settle: with kernels of 100 ms a round takes a second, and the arbiter needs a few rounds."""
    return 4.0 if shape.kernel_us >= 100_000 else SETTLE_S


def measure_single(report: Report, meter: Meter, count: int) -> None:
    """Measure one fixed tenant alone on the card."""
    errors, ratios = [], []
    for percent in (30,) if report.quick else (10, 30, 50, 80):
        for shape in _wanted(report):
            meter.lab.slot("one", core_percent=percent)
            settle_s = _settle_s(shape)
            rows = meter.windows([meter.start("one", shape, (count + 2) * WINDOW_S + settle_s)], count, settle_s)
            meter.drop("one")
            got = [row[0] for row in rows]
            error = statistics.fmean(abs(value - percent) for value in got)
            ratio = statistics.fmean(got) / percent * 100
            errors.append(error)
            ratios.append(ratio)
            detail = "windows " + " ".join(f"{value:.1f}" for value in got)
            report.add(f"alone {percent}% {shape.name}: error", error, "points", at_most=ERROR_POINTS, detail=detail)
            report.add(f"alone {percent}% {shape.name}: of its share", ratio, "%", at_least=OF_SHARE_PERCENT)
    report.add("alone: mean error over all", statistics.fmean(errors), "points", at_most=ERROR_POINTS)
    report.add("alone: least of its share", min(ratios), "%", at_least=OF_SHARE_PERCENT)


def measure_pairs(report: Report, meter: Meter, count: int) -> None:
    """Measure two fixed tenants that together ask for the whole card."""
    for shares in ((30, 70),) if report.quick else ((30, 70), (10, 90)):
        shapes = [(shape, shape) for shape in _wanted(report)]
        if not report.quick:
            shapes.append((SHAPES[0], SHAPES[2]))
        for first, second in shapes:
            name = f"{shares[0]}/{shares[1]} {first.name}" + ("" if first is second else f" with {second.name}")
            measure_pair(report, meter, f"pair {name}", shares, (first, second), count=count)


def measure_pair(
    report: Report, meter: Meter, title: str, shares: tuple[int, int], shapes: tuple[Shape, Shape], *, count: int
) -> None:
    """Measure one pair of tenants."""
    first, second = shapes
    for name, percent in zip("ab", shares, strict=True):
        meter.lab.slot(name, core_percent=percent)
    settle_s = _settle_s(first)
    windows = 2 * count if first.kernel_us >= 100_000 else count  # one kernel is ten points of a window
    seconds = (windows + 3) * WINDOW_S + settle_s
    groups = [meter.start("a", first, seconds), meter.start("b", second, seconds)]
    rows = meter.windows(groups, windows, settle_s)
    meter.drop(*"ab")
    got = [statistics.fmean(row[i] for row in rows) for i in range(2)]
    error = abs(got[0] / got[1] / (shares[0] / shares[1]) - 1) * 100 if got[1] else 100.0
    points = statistics.fmean(abs(row[i] - shares[i]) for row in rows for i in range(2))
    detail = f"got {got[0]:.1f}/{got[1]:.1f}"
    report.add(f"{title}: error of the ratio", error, "%", at_most=RATIO_ERROR_PERCENT, detail=detail)
    report.add(f"{title}: error", points, "points", at_most=ERROR_POINTS)
    report.add(f"{title}: card used", sum(got), "%", at_least=OF_SHARE_PERCENT)


def worst_window(rows: Sequence[Sequence[float]], tenant: int) -> float:
    """Return the least that a tenant had in any window of ``LONG_WINDOWS`` rows, in percent of the card."""
    starts = range(len(rows) - LONG_WINDOWS + 1)
    return min(statistics.fmean(row[tenant] for row in rows[at : at + LONG_WINDOWS]) for at in starts)


def report_long(
    report: Report, title: str, rows: Sequence[Sequence[float]], percent: int, *, points: float, promised: int
) -> None:
    """Report the share of the first tenant in windows of 1 s and in the worst 30 s, and the used part of the card."""
    mean = statistics.fmean(row[0] for row in rows)
    used = statistics.fmean(sum(row) for row in rows)
    detail = f"{len(rows)} s; got " + "/".join(f"{statistics.fmean(part):.1f}" for part in zip(*rows, strict=True))
    report.add(f"{title}: error", abs(mean - percent), "points", at_most=ERROR_POINTS, detail=detail)
    report.add(f"{title}: its share in the worst 30 s", worst_window(rows, 0), "%", at_least=percent - points)
    report.add(f"{title}: card used, of what is promised", used / promised * 100, "%", at_least=OF_SHARE_PERCENT)


def measure_long_kernels(report: Report) -> None:
    """Measure one tenant of short kernels beside four tenants of 10 percent with kernels of 2 s."""
    for percent in (60,) if report.quick else (50, 60):
        with VirtualLab() as lab:
            meter, names = Meter(lab), "abcde"
            for name in names:
                lab.slot(name, core_percent=percent if name == "a" else 10)
            long = Shape(name="2s", kernel_us=LONG_US)
            groups = [meter.start(name, SHAPES[1] if name == "a" else long, 1_000) for name in names]
            rows = meter.windows(groups, LONG_BEGIN + LONG_WINDOWS + (5 if report.quick else 30), settle_s=0)
        title = f"{percent}% 1ms beside four of 10% 2s"
        report_long(report, title, rows[LONG_BEGIN:], percent, points=LONG_POINTS, promised=percent + 40)
        first = worst_window(rows[:LONG_WINDOWS], 0)
        report.add(f"{title}: its share in the first 30 s", first, "%", at_least=percent - LONG_POINTS)


def measure_many_processes(report: Report) -> None:
    """Measure two tenants with eight processes each and kernels of 10 ms, over windows of 30 s."""
    shape = SHAPES[6]
    with VirtualLab() as lab:
        for name, percent in (("a", 30), ("b", 70)):
            lab.slot(name, core_percent=percent)
        meter = Meter(lab)
        rows = meter.windows([meter.start(name, shape, 1_000) for name in "ab"], LONG_WINDOWS + 5)
    report_long(report, f"pair 30/70 {shape.name}", rows, 30, points=ERROR_POINTS, promised=100)


def measure_forged(report: Report) -> None:
    """Measure an honest tenant beside one that runs real kernels and forges its page; both are audited."""
    everything = ("charged", "bucket", "inflight", "demand", "kernel")
    for what in (everything,) if report.quick else (("charged",), everything):
        with MisreportLab() as lab:
            lab.audited_slot("honest", 50)
            lab.audited_slot("liar", 50)
            lab.forge("liar", *what)
            groups = [[lab.audited_load(name, "--kernel-us", 1_000, "--seconds", 1_000)] for name in ("honest", "liar")]
            rows = Meter(lab).windows(groups, LONG_WINDOWS + 5, settle_s=4)
        title = f"50% beside a page that forges {'all' if len(what) > 1 else what[0]}"
        report_long(report, title, rows, 50, points=ERROR_POINTS, promised=100)


def measure_return(report: Report) -> None:
    """Measure how soon a lender has its share again, in windows of 10 ms of the card's accounts, in virtual time."""
    for shape in SHAPES[:3]:
        with VirtualLab() as lab:
            rows = returns(lab, shape, 8 if report.quick else 16)
        first = [returned_ms(row, LENDER_PART) for row in rows]
        worst = rows[first.index(max(first))]
        detail = f"{len(rows)} returns; percent in the worst's windows: " + " ".join(
            f"{p * 100:.0f}" for p in worst[:6]
        )
        name = f"lender's return {shape.name}: its share"
        goal = None if report.quick else GIVE_BACK_MS  # the short form does not go over all phases
        report.add(f"{name} from, median", statistics.median(first), "ms", at_most=goal)
        report.add(f"{name} from, worst", max(first), "ms", at_most=GIVE_BACK_WORST_MS, detail=detail)
        lost = max(lost_ms(row, LENDER_PART) for row in rows)
        report.add(
            f"{name} lost by then, worst", lost, "ms", at_most=GIVE_BACK_MS, detail="of its time, at most at any window"
        )


def returns(lab: Lab, shape: Shape, trials: int) -> list[list[float]]:
    """Return the share of a lender of 70 percent in windows of 10 ms each time it returns to a card that is lent whole."""
    meter = Meter(lab)
    lab.slot("lender", core_percent=int(LENDER_PART * 100), policy=ComputePolicy.BURST)
    lab.slot("borrower", core_percent=100 - int(LENDER_PART * 100), policy=ComputePolicy.BURST)
    (borrower,) = meter.start("borrower", shape, 1_000)
    rows = []
    for trial in range(trials + 1):
        at_ns = lab.now_ns() + 300_000_000 + trial * 1_700_000
        (lender,) = meter.start("lender", shape, 0.5, "--start-ns", at_ns)
        rows.append(return_windows(lab, lender, at_ns))
        lender.kill()
    borrower.kill()
    return rows[1:]  # its kernel was not measured before the first return


def return_windows(lab: Lab, tenant: Tenant, at_ns: int) -> list[float]:
    """Return the part of each window after ``at_ns`` that a tenant had."""
    lab.sleep((at_ns - lab.now_ns()) / 1e9)
    rows = []
    now_ns, busy = lab.busy_ns()
    for _ in range(RETURN_WINDOWS):
        lab.sleep((now_ns + RETURN_WINDOW_NS - lab.now_ns()) / 1e9)
        later_ns, later = lab.busy_ns()
        rows.append((later.get(tenant.pid, 0) - busy.get(tenant.pid, 0)) / (later_ns - now_ns))
        now_ns, busy = later_ns, later
    return rows


def returned_ms(windows: Sequence[float], part: float) -> float:
    """Return the time until the first window that holds 95 percent of the share."""
    back = next((i for i, got in enumerate(windows) if got >= 0.95 * part), len(windows))
    return float(back * RETURN_WINDOW_NS // 1_000_000)


def lost_ms(windows: Sequence[float], part: float) -> float:
    """Return how far the tenant's time lags behind its share at the end of the worst window, from the second one on."""
    ends = itertools.accumulate(windows)
    window_ms = RETURN_WINDOW_NS / 1e6
    return max((i + 1 - got / part) * window_ms for i, got in enumerate(ends) if i > 0)


def measure_lending(report: Report, meter: Meter, count: int) -> None:
    """Measure a burst tenant beside an idle one, and the idle one's return."""
    shape = SHAPES[1]
    meter.lab.slot("lender", core_percent=70, policy=ComputePolicy.BURST)
    meter.lab.slot("borrower", core_percent=30, policy=ComputePolicy.BURST)
    rows = meter.windows([meter.start("borrower", shape, (count + 2) * WINDOW_S)], count)
    report.add("idle time lent to burst", statistics.fmean(row[0] for row in rows), "%", at_least=97)
    trials = []
    for _ in range(3 if report.quick else 15):
        borrower = meter.start("borrower", shape, 1.2)
        lender = meter.start("lender", shape, 0.5, "--sample-ms", 0.5, "--start-ns", meter.lab.now_ns() + 600_000_000)
        result = lender[0].result()
        borrower[0].kill()
        trials.append(give_back_ms(result["series"], result["began_ns"], shape.kernel_us * 1_000, 0.70))
    report.add(
        "lent time given back within, median",
        statistics.median(trials),
        "ms",
        at_most=GIVE_BACK_MS,
        detail="until its next 100 ms hold 95% of the share",
    )
    report.add("lent time given back within, worst", max(trials), "ms", detail=f"of {len(trials)}")
    meter.drop("lender", "borrower")
    meter.lab.slot("idle", core_percent=70)
    meter.lab.slot("scavenger", core_percent=30, policy=ComputePolicy.BEST_EFFORT)
    rows = meter.windows([meter.start("scavenger", shape, (count + 2) * WINDOW_S)], count)
    report.add("idle time used by best-effort", statistics.fmean(row[0] for row in rows), "%", at_least=97)
    meter.drop("idle", "scavenger")


def give_back_ms(series: Sequence[Sequence[int]], began_ns: int, kernel_ns: float, share: float) -> float:
    """Return the time from the first launch until the moment whose following 100 ms hold 95 percent of the share."""
    for step in range(400):
        start = began_ns + step * 1_000_000
        work = (_completed(series, start + 100_000_000) - _completed(series, start)) * kernel_ns
        if work >= 0.95 * share * 100_000_000:
            return float(step)
    return 400.0


def measure(report: Report) -> None:
    """Measure all."""
    real = real_card()
    count = 2 if report.quick else 5
    with Lab() if real else VirtualLab() as lab:
        report.fact("card", "real" if real else "simulated A100-40GB, in virtual time")
        report.fact("date", f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}")
        report.fact("windows", f"{count} of {WINDOW_S:g} s for each figure")
        meter = Meter(lab)
        measure_single(report, meter, count)
        measure_pairs(report, meter, count)
        measure_lending(report, meter, count)
    if not real:
        measure_return(report)
        measure_long_kernels(report)
        measure_forged(report)
        if not report.quick:
            measure_many_processes(report)


if __name__ == "__main__":
    run("shares", "Compute shares", measure)
