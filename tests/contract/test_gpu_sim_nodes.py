"""Simulated nodes on disk: created, listed, shown, damaged, removed; every refusal has a reason and a hint."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from calabash.adapters.gpu import sim
from calabash.model.errors import CalabashError, Reason


def test_a_node_lives_from_create_to_destroy(tmp_path: Path) -> None:
    made = sim.create_node(tmp_path, "lab", "2xA100-40GB,T4", seed=3)
    assert made.state == tmp_path / "sim" / "lab" / "node.state"
    sim.create_node(tmp_path, "a-2", "P40")
    assert [n.name for n in sim.list_nodes(tmp_path)] == ["a-2", "lab"]
    assert sim.find_node(tmp_path, "lab") == made
    shown = sim.show_node(made)
    assert (shown.name, [d.model for d in shown.devices]) == ("lab", ["A100-40GB", "A100-40GB", "T4"])
    assert shown.devices[0].nvlink_peers == (1,)
    assert shown.processes == ()
    assert shown.unserved == ()
    sim.destroy_node(made)
    assert [n.name for n in sim.list_nodes(tmp_path)] == ["a-2"]
    assert not made.state.parent.exists()


def test_a_home_without_nodes_lists_none(tmp_path: Path) -> None:
    assert sim.list_nodes(tmp_path / "nowhere") == ()


@pytest.mark.parametrize("name", ["", "Lab", "a/b", "..", "-a", "a-", "a" * 64, "a b", "a\n"])
def test_unsafe_node_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(CalabashError) as caught:
        sim.create_node(tmp_path, name, "T4")
    assert caught.value.reason is Reason.BAD_REQUEST
    assert caught.value.hint
    assert list(tmp_path.iterdir()) == []


def test_refusals_carry_their_reason_and_leave_no_directory(tmp_path: Path) -> None:
    sim.create_node(tmp_path, "lab", "T4")
    with pytest.raises(CalabashError) as caught:
        sim.create_node(tmp_path, "lab", "T4")
    assert caught.value.reason is Reason.CONFLICT
    assert "calabash sim destroy lab" in caught.value.hint
    with pytest.raises(CalabashError) as caught:
        sim.create_node(tmp_path, "other", "3xGTX")
    assert caught.value.reason is Reason.BAD_REQUEST
    assert "known models" in caught.value.hint
    assert [p.name for p in (tmp_path / "sim").iterdir()] == ["lab"]
    with pytest.raises(CalabashError) as caught:
        sim.find_node(tmp_path, "none")
    assert (caught.value.reason, caught.value.hint) == (Reason.NOT_FOUND, "there are: lab")


def test_damaged_node_is_listed_as_damaged(tmp_path: Path) -> None:
    node = sim.create_node(tmp_path, "lab", "T4")
    node.state.write_bytes(node.state.read_bytes()[:1000])
    with pytest.raises(CalabashError) as caught:
        sim.show_node(node)
    assert caught.value.reason is Reason.BAD_FILE
    sim.destroy_node(node, force=True)
    assert sim.list_nodes(tmp_path) == ()


def test_read_only_home_is_refused_with_a_reason(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(CalabashError) as caught:
        sim.create_node(blocked, "lab", "T4")
    assert caught.value.reason is Reason.NOT_PERMITTED


def test_injected_faults_reach_the_node_and_invalid_ones_are_refused(tmp_path: Path) -> None:
    node = sim.create_node(tmp_path, "lab", "2xT4")
    sim.inject(node, "1", "lost")
    sim.inject(node, "all", "slow", "250%")
    assert [(d.lost, d.slow_permille) for d in sim.show_node(node).devices] == [(False, 2500), (True, 2500)]
    for words in (("5", "lost", None), ("0", "--json", None), ("0", "xid", "-3")):
        with pytest.raises(CalabashError) as caught:
            sim.inject(node, *words)
        assert caught.value.reason is Reason.BAD_REQUEST


def test_the_environment_puts_a_program_on_the_node(tmp_path: Path) -> None:
    node = sim.create_node(tmp_path, "lab", "H200")
    program = "from pynvml import *; nvmlInit(); print(nvmlDeviceGetName(nvmlDeviceGetHandleByIndex(0)))"
    environment = os.environ | sim.environment(node, "/somewhere/else")
    assert environment["LD_LIBRARY_PATH"].endswith(":/somewhere/else")
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "NVIDIA H200\n"


def test_users_who_reach_a_node_may_use_it_as_with_the_files_of_a_driver(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        node = sim.create_node(tmp_path, "lab", "T4")
    finally:
        os.umask(before)
    assert stat.S_IMODE(node.state.stat().st_mode) == 0o666
