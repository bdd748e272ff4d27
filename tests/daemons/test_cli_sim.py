"""``calabash sim``: create, show and remove simulated nodes and inject faults from the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.daemons.terminal import TENANT, Terminal
from tests.daemons.world import NATIVE, until


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    """Yield a terminal with an empty home."""
    made = Terminal(tmp_path / "h", tmp_path)
    yield made
    made.close()


def on_node(terminal: Terminal, name: str) -> Terminal:
    """Set the terminal's environment for programs that use the node directly, without a pool."""
    terminal.environment |= {
        "LD_LIBRARY_PATH": str(NATIVE / "simgpu"),
        "CALABASH_SIM": str(terminal.home / "sim" / name / "node.state"),
    }
    return terminal


def test_a_node_is_made_listed_shown_and_removed(terminal: Terminal) -> None:
    assert terminal.items("sim", "list") == []
    assert terminal("sim", "create", "lab", "--gpus", "4xA100-40GB,2xT4").stdout == "lab: 6 devices\n"
    made = json.loads(terminal("sim", "create", "other", "--gpus", "H100-80GB", "-o", "json").stdout)
    assert (made["kind"], made["name"], len(made["devices"])) == ("SimNode", "other", 1)
    assert terminal("sim", "list", "-o", "name").stdout.split() == ["lab", "other"]
    body = terminal.json("sim", "show", "lab")
    assert (body["kind"], body["name"]) == ("SimNode", "lab")
    assert [d["model"] for d in body["devices"]] == ["A100-40GB"] * 4 + ["T4"] * 2
    assert body["devices"][4]["name"] == "Tesla T4"
    assert terminal.yaml("sim", "show", "lab") == body
    assert terminal("sim", "show", "lab", "-o", "name").stdout.split() == [d["uuid"] for d in body["devices"]]
    assert len(terminal("sim", "show", "lab").stdout.splitlines()) == 7
    assert terminal("sim", "destroy", "lab").stdout == "lab\n"
    assert terminal("sim", "list", "-o", "name").stdout.split() == ["other"]
    assert "other" in terminal.refused(3, "sim", "show", "lab")


def test_the_same_seed_gives_the_same_cards(terminal: Terminal) -> None:
    uuids = []
    for name, seed in (("a", "7"), ("b", "7"), ("c", "8")):
        terminal("sim", "create", name, "--gpus", "2xT4", "--seed", seed)
        uuids.append(terminal("sim", "show", name, "-o", "name").stdout.split())
    assert uuids[0] == uuids[1] != uuids[2]


def test_a_node_that_exists_is_not_overwritten(terminal: Terminal) -> None:
    terminal("sim", "create", "lab", "--gpus", "2xT4")
    before = terminal("sim", "show", "lab", "-o", "name").stdout
    assert "exists" in terminal.refused(1, "sim", "create", "lab", "--gpus", "1xT4")
    assert terminal("sim", "show", "lab", "-o", "name").stdout == before


@pytest.mark.parametrize("gpus", ["", "4xRTX", "0xT4", "-1xT4", "2x", "xT4", "9999xT4", "2xT4,,1xT4", "T4;T4"])
def test_cards_that_do_not_exist_are_refused_and_leave_nothing(terminal: Terminal, gpus: str) -> None:
    terminal.refused(2, "sim", "create", "lab", f"--gpus={gpus}")
    assert terminal.items("sim", "list") == []


@pytest.mark.parametrize("name", ["", "..", "a/b", "UPPER", "a b", "x" * 64])
def test_names_that_are_no_names_are_refused(terminal: Terminal, name: str) -> None:
    terminal.refused(2, "sim", "create", "--gpus", "T4", "--", name)
    terminal.refused(2, "sim", "destroy", "--", name)


def test_faults_are_injected_shown_and_taken_back(terminal: Terminal) -> None:
    terminal("sim", "create", "lab", "--gpus", "3xT4")
    for words in (("0", "xid", "79"), ("1", "ecc-double"), ("2", "slow", "300%"), ("2", "alloc-fail", "3")):
        terminal("sim", "inject", "lab", "--gpu", *words)
    rows = terminal("sim", "show", "lab").stdout.splitlines()[1:]
    assert ["xid" in rows[0], "ecc" in rows[1], "slow 300%" in rows[2]] == [True] * 3
    terminal("sim", "inject", "lab", "--gpu", "all", "lost")
    assert all(d["lost"] for d in terminal.json("sim", "show", "lab")["devices"])
    terminal("sim", "inject", "lab", "--gpu", "all", "recover")
    assert not any(d["lost"] for d in terminal.json("sim", "show", "lab")["devices"])


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (2, ("lab", "--gpu", "0", "sneeze")),
        (2, ("lab", "--gpu", "0", "xid", "many")),
        (2, ("lab", "--gpu", "0", "slow", "0%")),
        (2, ("lab", "--gpu", "9", "lost")),
        (3, ("nosuch", "--gpu", "0", "lost")),
    ],
)
def test_faults_that_make_no_sense_are_refused(terminal: Terminal, code: int, words: tuple[str, ...]) -> None:
    terminal("sim", "create", "lab", "--gpus", "1xT4")
    before = terminal.json("sim", "show", "lab")
    terminal.refused(code, "sim", "inject", *words)
    assert terminal.json("sim", "show", "lab") == before


def test_a_node_in_use_is_destroyed_only_by_force(terminal: Terminal) -> None:
    terminal("sim", "create", "lab", "--gpus", "1xT4")
    on_node(terminal, "lab")
    script = f"exec {sys.executable} {TENANT} --seconds 60"
    program = subprocess.Popen(["sh", "-c", script], env=terminal.environment, stdout=subprocess.DEVNULL)
    try:
        until(lambda: terminal.json("sim", "show", "lab")["processes"], what="the program to use the card")
        assert terminal.items("sim", "list")[0]["processes"]
        assert "--force" in terminal.refused(1, "sim", "destroy", "lab")
        assert terminal.items("sim", "list")
        terminal("sim", "destroy", "lab", "--force")
        assert terminal.items("sim", "list") == []
    finally:
        program.kill()
        program.wait(timeout=60)


def test_a_broken_state_file_is_told_as_such(terminal: Terminal) -> None:
    terminal("sim", "create", "lab", "--gpus", "1xT4")
    state = terminal.home / "sim" / "lab" / "node.state"
    state.write_bytes(b"nonsense")
    done = terminal("sim", "show", "lab", code=None)
    assert done.returncode in (1, 2)
    assert "node.state" in done.stderr
    assert terminal("up", "--sim", "lab", code=None).returncode != 0
