"""The text form of clusters, queues and requests: rules as tests, bug reports, snapshots of a running scheduler.

What lives here: the reader of scenario files (``reader``) and what they say (``statements``), the run against the real
scheduler on a virtual clock (``runner``), and the writer of a scheduler's snapshot (``dump``). The format is described in
``docs/reference/scenario-format.md``. What never lives here: seams, clocks, threads.
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
