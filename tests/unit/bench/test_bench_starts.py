"""Comparison of planned and reported starts of the start benchmarks."""

from __future__ import annotations

import json
from typing import Any

import pytest
from bench._real_starts import Runs
from bench._starts import MIB, Shaper, Tally

from calabash.kubernetes.objects.plan import PlannedContainer, PlannedSlice

PLAN = PlannedContainer(
    name="main", mode="vgpu", slices=(PlannedSlice(device="GPU-a", memory_mib=200, core_percent=10),)
)


def report_of(**other: Any) -> dict[str, Any]:
    size = 200 * MIB
    return {"cuda": "GPU-a", "nvml": "GPU-a", "totals": [size, size, size], "half": 0, "over": 2, **other}


def line(*devices: dict[str, Any], label: str = "u/main", listed: int | None = None) -> str:
    return json.dumps({"label": label, "listed": len(devices) if listed is None else listed, "devices": devices})


@pytest.fixture
def tally() -> Tally:
    made = Tally()
    assert made.plan("u", PLAN) == "u/main"
    return made


def test_what_was_planned_is_right(tally: Tally) -> None:
    tally.heard(line(report_of()))
    assert (tally.wrong, tally.starts, tally.reported_starts("u/main")) == ([], 1, 1)


@pytest.mark.parametrize(
    ("told", "why"),
    [
        (line(), "1 devices were planned"),
        (line(report_of(), report_of(cuda="GPU-b")), "1 devices were planned"),
        (line(report_of(), listed=4), "1 devices were planned"),
        (line(report_of(cuda="GPU-b", nvml="GPU-b")), "GPU-b was not planned"),
        (line(report_of(nvml="GPU-b")), "NVML shows GPU-b"),
        (line(report_of(totals=[200 * MIB, 200 * MIB, 201 * MIB])), "bytes were planned"),
        (line(report_of(half=2)), "half of it was refused"),
        (line(report_of(over=0)), "more than all of it was given"),
        (line(report_of(), label="u/other"), "belongs to no planned container"),
        ("cuInit gave 100", "cannot be read"),
    ],
)
def test_anything_else_is_wrong(tally: Tally, told: str, why: str) -> None:
    tally.heard(told)
    (wrong,) = tally.wrong
    assert why in wrong


def test_runs_of_which_nothing_was_heard_are_lost_and_so_is_what_never_started(tally: Tally) -> None:
    for _ in range(3):
        tally.begun("u/main")
    tally.heard(line(report_of()))
    tally.gave_up("v/main", "no plug-in is registered")
    assert tally.lost() == ["u/main: 2 of 3", "v/main: no plug-in is registered"]


def test_runs_are_counted_once_when_they_have_ended_and_not_when_they_never_began() -> None:
    def ended(run: str, reason: str = "Completed") -> dict[str, Any]:
        return {"terminated": {"containerID": run, "reason": reason}}

    runs = Runs()
    runs.record([{"name": "main", "state": {"running": {}}, "lastState": ended("a")}])
    runs.record([{"name": "main", "state": ended("b"), "lastState": ended("a")}])
    runs.record([{"name": "main", "state": ended("c", "StartError"), "lastState": ended("b")}])
    assert runs.ended == {"main": {"a", "b"}}
    assert runs.broken_off == {"c"}


def test_the_same_seed_makes_the_same_pods() -> None:
    devices = ["GPU-a", "GPU-b"]
    first, second = (Shaper(devices=devices, most_mib=500, seed=7) for _ in range(2))
    pods = [first.pod() for _ in range(30)]
    assert pods == [second.pod() for _ in range(30)]
    assert {len(pod) for pod in pods} == {1, 2, 3, 4}
