"""Output format of the benchmarks."""

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


def test_ratio_has_the_goal_and_the_absolute_values_are_its_detail(capsys: pytest.CaptureFixture[str]) -> None:
    report = Report(name="x", title="X")
    figure = report.add_ratio("call", 30.0, 20.0, "ns", of="without it", at_most=1.6, detail="adds 10 ns")
    assert (figure.value, figure.unit, figure.goal, figure.ok) == (1.5, "ratio", "<= 1.600", True)
    assert figure.detail == "30 ns, without it 20 ns; adds 10 ns"
    assert report.add_ratio("rate", 10.0, 20.0, "1/s", of="alone", at_least=0.7).ok is False
    assert report.add_ratio("known", 10.0, 20.0, "1/s", of="alone").ok is None
    assert report.figures[0] is figure
    assert capsys.readouterr().out.splitlines()[0].split()[:5] == ["call", "1.500", "ratio", "<=", "1.600"]


def test_ratio_of_alternating_runs_is_the_median_of_their_pairs() -> None:
    report = Report(name="x", title="X")
    figure = report.add_ratio("call", [2.0, 60.0, 9.0], [1.0, 20.0, 9.0], "ns", of="without it", at_most=2)
    assert figure.value == 2.0  # of 2, 3 and 1; the medians alone would give 1
    assert figure.detail == "9 ns, without it 9 ns"


@pytest.mark.parametrize(
    ("values", "references"), [([1.0, 2.0], [1.0]), ([], []), (1.0, 0.0), ([1.0, 1.0], [1.0, -1.0])]
)
def test_ratio_without_a_reference_for_each_value_is_refused(
    values: float | list[float], references: float | list[float]
) -> None:
    report = Report(name="x", title="X")
    with pytest.raises(ValueError, match="need as many references greater than 0"):
        report.add_ratio("call", values, references, "ns", of="without it")
    assert report.figures == []


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
