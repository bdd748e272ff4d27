"""Tests of agents that are killed while they prepare or unprepare a claim.

The next agent grants the claim once and answers with the recorded names; of a deleted claim it leaves no state.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from calabash.adapters.gpu import sim

# A kill between two of these steps leaves the same state as a kill at the first of them.
STEPS = (
    ("after note", "before release"),
    ("after journal", "after release"),
    ("after grant", "after remove"),
    ("after rename", "before forget"),
)


def run(home: Path, what: str, step: str) -> subprocess.CompletedProcess[str]:
    state = sim.find_node(home, "lab").state
    words = [
        sys.executable,
        "-m",
        "tests.unit.kubernetes.node_plugin.prepare_and_die",
        str(home),
        str(state),
        what,
        step,
    ]
    return subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)


def killed(home: Path, what: str, step: str) -> None:
    done = run(home, what, step)
    assert done.returncode == -signal.SIGKILL, done.stderr


def answered(home: Path, what: str) -> Any:
    done = run(home, what, "none")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(("preparing", "giving_back"), STEPS)
def test_the_next_agent_ends_where_the_dead_one_would_have(tmp_path: Path, preparing: str, giving_back: str) -> None:
    sim.create_node(tmp_path, "lab", "1xT4", seed=1)
    killed(tmp_path, "prepare", preparing)
    (noted,) = (json.loads(path.read_text())["nonce"] for path in (tmp_path / "claims").glob("[0-9]*"))
    first = answered(tmp_path, "prepare")
    assert len(first["held"]) == 1
    assert first["held"][0][2] == 1024
    (spec,) = first["specs"].values()
    (name,) = first["names"][0]
    assert [device["name"] for device in spec["devices"]] == [name.partition("=")[2]]
    assert noted in name
    killed(tmp_path, "unprepare", giving_back)
    gone = answered(tmp_path, "gone")
    assert (gone["held"], gone["left"]) == ([], [])


def test_half_a_file_of_a_dead_agent_and_what_has_no_note_are_gone_after_the_next_start(tmp_path: Path) -> None:
    sim.create_node(tmp_path, "lab", "1xT4", seed=1)
    killed(tmp_path, "prepare", "before rename")
    assert [path.suffix for path in (tmp_path / "cdi").iterdir()] == [".new"]
    (note,) = (tmp_path / "claims").iterdir()
    note.rename(note.with_name(f".{note.name}.new"))
    gone = answered(tmp_path, "gone")
    assert (gone["held"], gone["left"]) == ([], [])
