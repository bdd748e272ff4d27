"""`python -m tools.repeat`: the failed tests that it runs again, in a project whose tests pass alone or never."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from tools.repeat import FAILED_MAX, GROUPS, refusal

ROOT = Path(__file__).resolve().parents[3]
CONFTEST = "pytest_plugins = ('tests.completed',)\n"
# `busy` fails in the first run, which it finds out by a file.
TESTS = """
import os, pathlib, pytest

def fails_once(name):
    seen = pathlib.Path(name)
    if not seen.exists():
        seen.touch()
        raise AssertionError("busy")

@pytest.mark.quick
@pytest.mark.parametrize("number", range(int(os.environ["BUSY"])))
def test_busy(number): fails_once(f"seen-{number}")

@pytest.mark.quick
def test_broken(): assert os.environ["BROKEN"] == "no"

@pytest.mark.complete
def test_good(): pass

@pytest.mark.complete
def test_killed():
    if os.environ["KILLED"] == "yes": os._exit(1)
"""


class Project:
    def __init__(self, home: Path, *, busy: int = 0, broken: str = "no", killed: str = "no") -> None:
        self.home = home
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        self.environment = kept | {"PYTHONPATH": str(ROOT), "BUSY": str(busy), "BROKEN": broken, "KILLED": killed}
        (home / "pytest.ini").write_text("[pytest]\nmarkers =\n    quick\n    complete\n    system\n")
        (home / "conftest.py").write_text(CONFTEST)
        (home / "test_some.py").write_text(TESTS)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", *arguments],
            cwd=self.home,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def run_all(self) -> None:
        for group in GROUPS:
            self.run("pytest", "-n", "2", "-m", group)


def test_tests_that_pass_alone_are_named_and_do_not_fail_the_run(tmp_path: Path) -> None:
    project = Project(tmp_path, busy=2)
    project.run_all()
    repeated = project.run("tools.repeat")
    assert repeated.returncode == 0, repeated.stdout + repeated.stderr
    unstable = [line.split()[1] for line in repeated.stdout.splitlines() if line.startswith("unstable: ")]
    assert sorted(unstable) == ["test_some.py::test_busy[0]", "test_some.py::test_busy[1]"]


def test_a_test_that_fails_again_fails_the_run(tmp_path: Path) -> None:
    project = Project(tmp_path, busy=1, broken="yes")
    project.run_all()
    repeated = project.run("tools.repeat")
    assert repeated.returncode == 1
    assert "unstable: " not in repeated.stdout
    assert "1 failed, 1 passed" in repeated.stdout


def test_more_failures_than_the_limit_are_not_repeated(tmp_path: Path) -> None:
    project = Project(tmp_path, busy=FAILED_MAX + 1)
    project.run_all()
    repeated = project.run("tools.repeat")
    assert repeated.returncode == 1
    assert "6 tests failed, more than 5" in repeated.stderr


def test_a_run_that_was_ended_is_not_repeated(tmp_path: Path) -> None:
    project = Project(tmp_path, busy=1, killed="yes")
    project.run("pytest", "-m", GROUPS[0])
    project.run("pytest", "-m", GROUPS[1])  # ends with the process of the test
    repeated = project.run("tools.repeat")
    assert repeated.returncode == 1
    assert "'complete or system' did not come to its end" in repeated.stderr


@pytest.mark.parametrize(
    ("failed", "completed", "told"),
    [
        ([], GROUPS, "no test is noted as failed"),
        (["a"], GROUPS[:1], "did not come to its end"),
        (["a"] * FAILED_MAX, GROUPS, None),
    ],
)
def test_refusals(failed: Sequence[str], completed: Sequence[str], told: str | None) -> None:
    assert told in refusal(failed, completed) if told else refusal(failed, completed) is None  # type: ignore[operator]
