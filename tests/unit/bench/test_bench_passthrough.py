"""Figures of the passthrough benchmark if the emulated machine reports none."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench import modes_passthrough
from bench._report import Report
from tests.vfio.machine import EmulatedMachine, Told
from tools.emulated import Emulated


def test_a_machine_that_ends_without_the_times_is_a_fact_and_no_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Ending:
        def __init__(self, **_: object) -> None: ...

        program = EmulatedMachine.program
        parts = Emulated(tree=tmp_path)

        def run(self, words: list[str]) -> Told:
            assert words[-1] == "times"
            return Told(lines=['{"case": "open"}'], console="booted\nKernel panic", seconds=480.0)

    monkeypatch.setattr(modes_passthrough, "EmulatedMachine", Ending)
    monkeypatch.setattr(modes_passthrough, "found", lambda: Emulated(tree=tmp_path))
    monkeypatch.setattr(modes_passthrough, "cache", lambda: tmp_path)
    monkeypatch.setattr(modes_passthrough, "build_innermost", lambda to: None)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    report = Report(name="modes", title="Sharing modes")
    modes_passthrough.measure_passthrough(report)
    assert report.figures == []
    assert "after 480 s without them: booted | Kernel panic" in report.facts["passthrough"]
