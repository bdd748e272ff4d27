"""Run every scenario file as a test: the file is named after its rule, and its decisions are exactly the expected ones."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from calabash.scenario.reader import parse_scenario
from calabash.scenario.runner import ScenarioResult, run_file, run_scenario
from calabash.scenario.statements import ScenarioError

FILES = sorted(Path(__file__).parent.glob("*.scenario"))


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_scenario(path: Path) -> None:
    result = run_file(path)
    assert result.passed, "\n" + result.text()


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_scenario_file_is_named_after_its_rule(path: Path) -> None:
    rule = parse_scenario(path.read_text(), path=path.name).rule
    assert path.stem == re.sub(r"[^a-z0-9]+", "_", rule.lower()).strip("_")


def test_at_least_sixty_rules_exist() -> None:
    assert len(FILES) >= 60


HEAD = "rule r\nnodes gpu-1: 2 x T4\nqueues team\n"


def run(text: str) -> ScenarioResult:
    return run_scenario(parse_scenario(HEAD + text))


def test_unexpected_decision_fails_and_is_shown() -> None:
    result = run("asks team/a: 1 gpu\nthen nothing\n")
    assert not result.passed
    assert "+ bind team/a -> gpu-1:0" in result.text()


def test_missing_decision_fails_and_is_shown() -> None:
    result = run("asks team/a: 1 gpu\nthen bind team/a -> gpu-1\n bind team/b -> gpu-1\n")
    assert not result.passed
    assert "- bind team/b -> gpu-1" in result.text()


def test_wrong_reason_or_number_in_an_explanation_fails() -> None:
    requests = "asks team/a: 3 gpu\n"
    assert run(requests + 'then pending team/a\nwhy team/a: too_large "asked 3"\n').passed
    assert not run(requests + "then pending team/a\nwhy team/a: no_cpu\n").passed
    assert not run(requests + 'then pending team/a\nwhy team/a: too_large "asked 4"\n').passed


def test_wrong_share_fails() -> None:
    assert run("asks team/a: 1 gpu\nshares team waiting=1\n").passed
    assert not run("asks team/a: 1 gpu\nshares team waiting=2\n").passed


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        ("frobnicate x\n", ":4:", "not a keyword"),
        ("asks team/a: 1.5 gpu\n", ":4:", "neither a number of whole devices nor a fraction"),
        ("asks a: 1 gpu\n", ":4:", "no queue/name"),
        ("asks team/a: 1 gpu, gnag\n", ":4:", "clause 'gnag' is not known"),
        ("asks team/a: 1 gpu\nthen bind team/a gpu-1\n", ":5:", "not a decision"),
        ("asks team/a: 1 gpu\nthen pending team/a reason=because\n", ":5:", "'reason=because' is not known"),
        ("nodes gpu-2: 2 x Q9\n", ":4:", "unknown"),
        ("queues team deserved=x\n", ":4:", "not a number"),
        ("queues team deserved=4 limit=2\n", ":4:", "exceeds the limit of 2"),
        ("options magic=1\n", ":4:", "unknown"),
        ("after soon\n", ":4:", "not a duration"),
        ("asks team/a[3-1]: 1 gpu\n", ":4:", "empty or too long"),
        ("rule another\n", ":4:", "second rule"),
        ("asks team/a: 1 gpu\n", ":4:", "no expectation"),
        ("asks nobody/a: 1 gpu\nthen nothing\n", ":4:", "does not exist"),
        ("has team/a: 3 gpu\nthen nothing\n", ":4:", "does not fit"),
        ("ends team/z\nthen nothing\n", ":4:", "does not exist"),
        ("nodes gpu-2: 2 x X1@40960\n", ":4:", "has no unit"),
        ("asks team/a: 0.5 gpu 4000\n", ":4:", "has no unit"),
    ],
)
def test_invalid_scenario_file_is_refused_with_its_line(text: str, where: str, what: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        run(text)
    assert where in str(caught.value)
    assert what in str(caught.value)


def test_unreadable_scenario_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="cannot be read"):
        run_file(tmp_path / "none.scenario")
