"""The form in which benchmarks report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bench._report import Report, format_value, save


def test_a_figure_is_held_against_its_goal(capsys: pytest.CaptureFixture[str]) -> None:
    report = Report(name="x", title="X")
    assert report.add("low", 1.5, "ns", at_most=2).ok is True
    assert report.add("high", 96.9, "%", at_least=97).ok is False
    assert report.add("known", 3, "calls").ok is None
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["low", "1.500", "ns", "<=", "2", "ok"]
    assert lines[1].split()[-1] == "short"


def test_the_saved_forms_hold_every_figure(tmp_path: Path) -> None:
    report = Report(name="x", title="X", quick=True)
    report.fact("seed", "7")
    report.add("low", 1.5, "ns", at_most=2, detail="of three")
    save(report, tmp_path / "out")
    document = json.loads((tmp_path / "out" / "x.json").read_text())
    assert document["figures"][0]["value"] == 1.5
    assert document["facts"] == {"seed": "7"}
    text = (tmp_path / "out" / "x.md").read_text()
    assert "| low | 1.500 | ns | <= 2 | ok | of three |" in text


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (12, "12"), (1234567, "1,234,567"), (0.12345, "0.123"), (99.98, "99.98")]
)
def test_values_are_short_and_exact_enough(value: float, text: str) -> None:
    assert format_value(value) == text
