"""An agent that is killed at any step of preparing a claim: the next one holds it once, and answers what was noted first."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from calabash.seams.gpu import sim

# After the note, after the entry in the journal, after the grant, after the spec: what lies between leaves nothing else behind.
STEPS = (2, 5, 6, 8)


def prepare(home: Path, step: int) -> subprocess.CompletedProcess[str]:
    state = sim.find_node(home, "lab").state
    words = [sys.executable, "-m", "tests.unit.kubernetes.node.prepare_and_die", str(home), str(state), str(step)]
    return subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)


def answered(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("step", STEPS)
def test_the_next_agent_ends_where_the_dead_one_would_have(tmp_path: Path, step: int) -> None:
    sim.create_node(tmp_path, "lab", "1xT4", seed=1)
    assert prepare(tmp_path, step).returncode == -signal.SIGKILL
    (noted,) = (json.loads(path.read_text())["nonce"] for path in (tmp_path / "claims").glob("[0-9]*"))
    first = answered(prepare(tmp_path, 0))
    assert len(first["held"]) == 1
    assert first["held"][0][2] == 1024
    (spec,) = first["specs"].values()
    (name,) = first["names"][0]
    assert [device["name"] for device in spec["devices"]] == [name.partition("=")[2]]
    assert noted in name
