"""Scenario files: a text format for clusters, queues, requests and expected decisions of the scheduler.

Scenario files are used as tests of scheduling rules, in bug reports, and as snapshots of a running scheduler. ``reader`` parses
a file to ``statements``, ``runner`` runs it against the real scheduler on a virtual clock, and ``dump`` writes the snapshot of
a scheduler as a file. The format is described in ``docs/reference/scenario-format.md``. The package uses no adapters, clocks or
threads.
"""

from calabash.scenario.dump import dump_scenario
from calabash.scenario.reader import parse_scenario
from calabash.scenario.runner import ScenarioResult, run_file, run_scenario
from calabash.scenario.statements import Scenario, ScenarioError

__all__ = [
    "Scenario",
    "ScenarioError",
    "ScenarioResult",
    "dump_scenario",
    "parse_scenario",
    "run_file",
    "run_scenario",
]
