"""Time report of test runs (``tests/timing.py``)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.timing import RECORD, SMALL_RUN, Times, read_budgets

ROOT = Path(__file__).resolve().parents[3]
BUDGETS = {"quick": {"tests/unit": 10.0, "tests/unit/sched": 5.0}, "complete": {"tests/daemons": 3.0}}


def test_time_of_a_module_counts_for_its_deepest_budgeted_folder() -> None:
    times = Times(BUDGETS)
    times.add_phase("tests/unit/sched/test_a.py::test_x", "quick", 4.0)
    times.add_phase("tests/unit/sched/test_a.py::test_x", "quick", 2.0)
    times.add_phase("tests/unit/test_b.py::test_y", "quick", 9.0)
    assert times.folders == {("quick", "tests/unit/sched"): 6.0, ("quick", "tests/unit"): 9.0}
    assert times.modules["tests/unit/sched/test_a.py"] == 6.0
    assert times.over_budget() == [("quick", "tests/unit/sched")]


def test_budget_of_one_group_does_not_hold_for_another() -> None:
    times = Times(BUDGETS)
    times.add_phase("tests/daemons/test_pool.py::test_x", "quick", 100.0)
    assert times.over_budget() == []
    assert times.folder("complete", "tests/daemons/test_pool.py") == "tests/daemons"


def test_report_names_slowest_modules_fixtures_and_folders_over_budget() -> None:
    times = Times(BUDGETS)
    for number in range(12):
        times.add_phase(f"tests/unit/test_{number}.py::test_x", "quick", float(number))
    times.fixtures["tests/unit::world"] = 7.5
    lines = times.lines()
    assert any(line.split() == ["11.0", "s", "tests/unit/test_11.py"] for line in lines)
    assert not any("test_1.py" in line for line in lines), "only the ten slowest are named"
    assert any("7.5 s  tests/unit::world" in line for line in lines)
    assert [line for line in lines if line.endswith("OVER BUDGET")] == [
        "    66.0 s of    10 s  quick    tests/unit  OVER BUDGET"
    ]


def test_every_folder_of_tests_has_a_budget() -> None:
    budgets = read_budgets(ROOT / "pyproject.toml")
    budgeted = {folder for group in budgets.values() for folder in group}
    folders = {path.parent for path in (ROOT / "tests").rglob("test_*.py")}
    relative = {folder.relative_to(ROOT) for folder in folders}
    assert [f for f in sorted(relative) if not any(f.is_relative_to(name) for name in budgeted)] == []
    assert [name for name in sorted(budgeted) if not (ROOT / name).is_dir()] == []


@pytest.mark.parametrize("workers", [0, 2])
def test_report_of_a_run_counts_all_tests_and_fixtures_of_all_workers(tmp_path: Path, workers: int) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_many.py").write_text(
        "import time, pytest\n"
        "@pytest.fixture\n"
        "def slow():\n"
        "    time.sleep(0.001)\n"
        f"@pytest.mark.parametrize('n', range({SMALL_RUN}))\n"
        "def test_it(slow, n): pass\n"
    )
    (tmp_path / "pyproject.toml").write_text(
        '[tool.pytest.ini_options]\n[tool.calabash.test-budgets.quick]\n"tests" = 0.01\n'
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "tests.timing", "-p", "no:cacheprovider", f"-n{workers}", "tests"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{SMALL_RUN} tests in " in done.stdout
    fixture = next(line for line in done.stdout.splitlines() if line.endswith("tests/test_many.py::slow"))
    assert float(fixture.split()[0]) >= SMALL_RUN * 0.001
    assert "quick    tests  OVER BUDGET" in done.stdout
    assert list(json.loads((tmp_path / RECORD).read_text())) == ["tests/test_many.py"]
