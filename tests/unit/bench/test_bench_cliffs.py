"""Slow cases of the scheduler: each case of the benchmark makes its decisions, in a small size."""

from __future__ import annotations

import pytest
from bench import cliffs
from bench._report import Report

from calabash.sched.scheduler import Scheduler

SMALL = cliffs.Size(nodes=20, part=100)
DECIDED: dict[str, list[tuple[dict[str, int], int]]] = {
    "reclaims": [({"Evict": 8, "Defer": 8, "Bind": 1}, 0)],
    "two_priorities": [({"Evict": 2, "Defer": 50, "Bind": 2}, 1)],
    "hopeless": [({"Defer": 1}, 0), ({}, 0)],
    "limited": [({"Defer": 1}, 0), ({"Bind": 1}, 0)],
    "preemptions": [({"Evict": 16, "Defer": 16, "Bind": 2}, 0)],
    "defragmentations": [({"Move": 4, "Bind": 1}, 0)],
    "shapes": [({"Defer": 30}, 1), ({}, 1), ({}, 1), ({"Bind": 31}, 0)],
    "leaf_queues": [({"Evict": 3, "Defer": 3, "Bind": 10}, 0)],
    "gangs": [({"Defer": 80}, 1)],
    "reservation": [({"Defer": 2}, 1)],
    "slices": [({"Evict": 10, "Defer": 10, "Bind": 1}, 0)],
    "chain": [({"Bind": 20}, 0)],
    "gang": [({"Bind": 5}, 0)],
}


@pytest.mark.parametrize("case", [case for case, _ in cliffs.CASES], ids=lambda case: case.__name__)
def test_slow_case_decides_what_it_is_about(case: cliffs.Case) -> None:
    steps = list(case(SMALL))
    assert [(dict(step.decided), step.promised) for step in steps] == DECIDED[case.__name__]
    assert all(step.took.work_s > 0 and step.took.unit_s > 0 for step in steps)


def test_slow_cases_are_printed_in_milliseconds_and_in_units_of_the_reference_loop(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cliffs, "FULL", SMALL)
    monkeypatch.setattr(cliffs, "CASES", ((cliffs.hopeless, 100),))
    report = Report(name="cliffs", title="X")
    cliffs.measure(report)
    first, later = report.figures
    assert (first.name, first.unit, first.goal) == ("1 hopeless reclaims of distinct shapes", "ratio", "<= 300")
    assert first.detail.endswith("wanted 300 ms; 1 Defer")
    assert later.detail.endswith("wanted 1 ms; nothing decided")
    assert " ms, CPU unit " in capsys.readouterr().out


def test_case_that_decides_nothing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scheduler, "cycle", lambda scheduler, now_s: ())
    with pytest.raises(AssertionError):
        list(cliffs.chain(SMALL))
