"""Pytest plug-in: report the time of a run by module, fixture and folder, and compare each folder with its budget.

Workers measure the set-up of fixtures; the controller adds up the phases of all tests. The report is printed at the end of
every run of more than ``SMALL_RUN`` tests: the slowest modules, the slowest fixtures, and the time per folder. The budgets
stand in ``pyproject.toml``, for each group of tests (``quick``, ``complete``, ``system``)::

    [tool.calabash.test-budgets.quick]
    "tests/unit" = 200

A budget is in seconds of test time: set-up, call and tear-down, added over all workers. A folder that exceeds its budget
is named in the report; the run does not fail, because the time depends on the machine's load.
"""

from __future__ import annotations

import json
import time
import tomllib
from collections import defaultdict
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import pytest

GROUPS = ("quick", "complete", "system")
SMALL_RUN = 200
RECORD = Path("build", "test-times.json")
_ROWS = 10
_PLUGIN = "calabash-timing"
_OUTPUT = "calabash_fixtures"

Budgets = Mapping[str, Mapping[str, float]]


def read_budgets(pyproject: Path) -> Budgets:
    """Return the budgets in seconds, by group and folder; empty if the file has none."""
    if not pyproject.is_file():
        return {}
    found: Budgets = tomllib.loads(pyproject.read_text()).get("tool", {}).get("calabash", {}).get("test-budgets", {})
    return found


class Times:
    """Seconds of test time by module and by group and folder, and of fixtures by name."""

    def __init__(self, budgets: Budgets) -> None:
        self._budgets = budgets
        self._began_s = time.monotonic()
        self.tests: set[str] = set()
        self.modules: defaultdict[str, float] = defaultdict(float)
        self.folders: defaultdict[tuple[str, str], float] = defaultdict(float)
        self.fixtures: defaultdict[str, float] = defaultdict(float)

    def add_phase(self, node_id: str, group: str, seconds: float) -> None:
        """Count one phase (set-up, call or tear-down) of a test."""
        module = node_id.partition("::")[0]
        self.tests.add(node_id)
        self.modules[module] += seconds
        self.folders[group, self.folder(group, module)] += seconds

    def folder(self, group: str, module: str) -> str:
        """Return the budgeted folder that holds a module, or its first two path elements if no budget names it."""
        holders = [name for name in self._budgets.get(group, ()) if module.startswith(f"{name}/")]
        return max(holders, key=len, default="/".join(module.split("/")[:-1][:2]))

    def over_budget(self) -> list[tuple[str, str]]:
        """Return the groups and folders whose tests took longer than their budget."""
        return [key for key, seconds in sorted(self.folders.items()) if seconds > self._budget(*key)]

    def _budget(self, group: str, folder: str) -> float:
        return self._budgets.get(group, {}).get(folder, float("inf"))

    def lines(self) -> list[str]:
        """Return the report."""
        passed_s = time.monotonic() - self._began_s
        total_s, fixtures_s = sum(self.modules.values()), sum(self.fixtures.values())
        report = [
            f"{len(self.tests)} tests in {passed_s:.0f} s",
            f"{total_s:.0f} s of test time, of which {fixtures_s:.0f} s in set-up of fixtures",
        ]
        report += ["", f"slowest {_ROWS} modules"]
        report += [f"{seconds:8.1f} s  {name}" for name, seconds in _slowest(self.modules)]
        report += ["", f"slowest {_ROWS} fixtures"]
        report += [f"{seconds:8.1f} s  {name}" for name, seconds in _slowest(self.fixtures)]
        report += ["", "folders, with their budgets"]
        for (group, folder), seconds in sorted(self.folders.items()):
            budget = self._budget(group, folder)
            text = f"of {budget:5.0f} s" if budget < float("inf") else "no budget "
            report.append(f"{seconds:8.1f} s {text}  {group:<8} {folder}{'  OVER BUDGET' if seconds > budget else ''}")
        return report


def _slowest(times: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(times.items(), key=lambda item: -item[1])[:_ROWS]


def _record(path: Path, modules: Mapping[str, float]) -> None:
    """Keep the time of each module for ``tools.changed``, which fills its time limit with the nearest tests."""
    try:
        known = json.loads(path.read_text())
    except (OSError, ValueError):
        known = {}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        json.dumps(known | {name: round(seconds, 2) for name, seconds in sorted(modules.items())}, indent=0)
    )


class TimingPlugin:
    """Hooks of the controller and of workers; a worker only measures fixtures and hands the times to the controller."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self.times = Times(read_budgets(config.rootpath / "pyproject.toml"))

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
    ) -> Generator[None, object, object]:
        began_s = time.monotonic()
        try:
            return (yield)
        finally:
            # A fixture's own dependencies are set up before this hook is called, so that times do not overlap.
            self.times.fixtures[f"{fixturedef.baseid or 'plug-ins'}::{fixturedef.argname}"] += (
                time.monotonic() - began_s
            )

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        group = next((name for name in GROUPS if name in report.keywords), "quick")
        self.times.add_phase(report.nodeid, group, report.duration)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        for name, seconds in getattr(node, "workeroutput", {}).get(_OUTPUT, {}).items():
            self.times.fixtures[name] += seconds

    def pytest_sessionfinish(self) -> None:
        output = getattr(self._config, "workeroutput", None)
        if output is not None:
            output[_OUTPUT] = dict(self.times.fixtures)
        elif len(self.times.tests) >= SMALL_RUN:
            _record(self._config.rootpath / RECORD, self.times.modules)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if len(self.times.tests) < SMALL_RUN:
            return
        terminalreporter.section("time")
        for line in self.times.lines():
            terminalreporter.write_line(line)


def pytest_configure(config: pytest.Config) -> None:
    """Register the plug-in."""
    config.pluginmanager.register(TimingPlugin(config), _PLUGIN)
