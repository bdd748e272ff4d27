"""Goals of the benchmarks: ratios that do not change with the speed of the machine."""

from __future__ import annotations

import ast
import itertools
from typing import Any

import pytest
from bench import _scale_model, decisions, shim
from bench._report import ROOT, Report
from bench._scale_fit import Line
from bench.kube_latency import Times, report_figures

from calabash.sched.cluster.engine import Engine
from calabash.sched.cluster.shape import Shape
from calabash.sim import generate

KINDS = ("pass_through", "attribute", "launch", "allocation", "memory_info")
TIMES_AND_RATES = {"ns", "us", "ms", "s", "/s", "1/s", "pods/s", "M/s", "GiB/s", "Gbit/s", "GFLOP/s"}
# At most so many figures with a goal in seconds, by benchmark; the reason is in their `detail` or in the module's description.
ABSOLUTE = {
    "kube_claims": 1,  # a fault is published: the agent's poll interval
    "kube_endures": 3,  # decisions after a fault: terms of leases, retries of connections
    "modes_ends": 1,  # the end of a slice: the pool's poll interval
    "modes_health": 1,  # verdicts: the pool's poll interval
    "modes_mps": 3,  # service after a fault: the pool's poll intervals
    "net": 2,  # reconnection after 1 s, Raft's election timer
    "net_balancers": 1,  # the interval at which listening sockets are looked at
    "net_gateways": 3,  # BFD, advertisements of keepalived
    "pool": 1,  # the pool's poll intervals
    "pool_recovery": 2,  # what operators were promised, on a machine that is named beside the figures
    "pool_scale": 3,  # what a person waits for, beside the processor time of the daemon
    "recovery": 3,  # the interval at which the agent reaps; and work in flight, which must be zero
    "shares": 4,  # virtual time; real cards
}


def run(scale: float = 1.0, **ns: float) -> dict[str, Any]:
    return {kind: scale * ns.get(kind, 100.0) for kind in KINDS}


def shim_figures(results: shim.Results) -> dict[str, tuple[float, bool | None]]:
    report = Report(name="shim", title="X")
    shim.add_calls(report, results)
    return {figure.name: (round(figure.value, 6), figure.ok) for figure in report.figures}


@pytest.mark.parametrize("slower", [1.0, 3.0])
def test_goals_of_the_library_are_the_same_on_a_slower_machine(slower: float) -> None:
    results: shim.Results = {
        None: [run(slower)],
        "tracked": [run(slower, pass_through=105, attribute=104, launch=121, allocation=159)],
        "whole": [run(slower, launch=110)],
        "seen": [run(slower, launch=111)],
    }
    found = shim_figures(results)
    assert found["pass-through call"] == (1.05, True)
    assert found["launch under no compute limit"] == (1.1, True)
    assert found["launch in a slice without limits"] == (1.11, False)
    assert found["launch, limited and not throttled"] == (1.21, False)
    assert found["allocation"] == (1.59, True)


def test_ratio_of_the_library_is_taken_within_each_round() -> None:
    speeds = (1.0, 10.0, 2.0)  # the machine changes between rounds
    results: shim.Results = {None: [run(speed) for speed in speeds]}
    results |= {name: [run(speed, allocation=150) for speed in speeds] for name in ("tracked", "whole", "seen")}
    assert shim_figures(results)["allocation"] == (1.5, True)


def test_start_of_a_planner_is_extrapolated_in_cpu_units() -> None:
    def starts(slower: float) -> list[_scale_model.Demand]:
        none, start = (Line(fixed=0, each=each, off_percent=0) for each in (0, 0.002 * slower))
        costs = _scale_model.Costs(
            write_ms=0, event_ms=0, pod_ms=0, planner_event_ms=0, listed_us=0, pod_listed_us=0, etcd_bytes=none,
            planner_mib=none, planner_start_s=start, passed_over_us=0, cpu_unit_s=0.001 * slower,
        )  # fmt: skip
        return [one for one in _scale_model.demands(50_000, costs) if "until it decides" in one.what]

    slow, fast = starts(3.0), starts(1.0)
    assert [one.value for one in slow] == pytest.approx([one.value for one in fast])
    assert fast[0].value == pytest.approx(100_000)
    assert fast[0].at_most == 60_000
    assert (fast[0].how, slow[0].how) == ("100.0 s on this machine", "300.0 s on this machine")


@pytest.mark.parametrize("slower", [1.0, 3.0])
def test_goal_of_a_start_with_a_slice_is_of_the_plain_start_beside_it(slower: float) -> None:
    def started(printed_s: float) -> Times:
        moments = ("asked", "made", "planned", "bound", "admitted", "created", "printed", "running")
        return Times(at_s={moment: slower * printed_s * number / 6 for number, moment in enumerate(moments)})

    report = Report(name="kube_latency", title="X")
    report_figures(report, [started(0.2), started(0.4)], [started(0.24), started(0.52)])
    (figure,) = (one for one in report.figures if one.ok is not None)
    assert figure.name == "create to first line printed, slice of plain"
    assert (round(figure.value, 6), figure.ok) == (1.25, True)  # of 1.2 and 1.3


def absolute_goals(source: str) -> int:
    """Return how many calls of `Report.add` give a time or a rate an absolute goal."""
    count = 0
    for node in ast.walk(ast.parse(source)):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add"):
            continue
        unit = node.args[2] if len(node.args) > 2 else None
        timed = isinstance(unit, ast.Constant) and unit.value in TIMES_AND_RATES
        count += timed and any(word.arg in {"at_most", "at_least"} for word in node.keywords)
    return count


def test_absolute_times_have_goals_only_where_a_timer_or_virtual_time_sets_them() -> None:
    found = {path.stem: absolute_goals(path.read_text()) for path in sorted((ROOT / "bench").glob("*.py"))}
    assert {name: count for name, count in found.items() if count > ABSOLUTE.get(name, 0)} == {}


def test_absolute_goals_are_found_in_any_form_of_the_call() -> None:
    source = """
report.add("a", f(1, (2)), "ms", detail=g(at_most=1), at_most=GOAL)
report.add("b", 1, "ms")
report.add("c", 1, "GiB", at_most=1)
other.report.add(f"{d}", 1, "1/s",
    at_least=None if x else 1)
report.add_ratio("e", 1, 2, "s", of="x", at_most=1)
"""
    assert absolute_goals(source) == 2


def test_loops_between_decisions_are_spread_over_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    def loop() -> float:
        order.append("loop")
        return 5e-5

    def decide(engine: Engine, shape: Shape) -> None:
        order.append("decision")

    monkeypatch.setattr(decisions, "short_loop_s", loop)
    monkeypatch.setattr(Engine, "decide", decide)
    workload = generate.workload(50, seed=1)
    world = decisions.World(generate.cluster(4, seed=1), workload, seed=1)
    times = world.hold(130, itertools.cycle(workload.shapes))
    assert [index for index, what in enumerate(order) if what == "loop"] == [0, 65, 130]
    assert (len(times.own_ns), len(times.loops_s)) == (130, 3)
    assert times.loop_us == pytest.approx(50.0)
