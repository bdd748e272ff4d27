"""Tests of time slices of contexts that share a simulated card, and of the tool that sets their length."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.native.sim_cuda_programs import CudaNode, program
from tests.native.simnode import simctl

from calabash.adapters.gpu.library import simulated_library_dir

SMI = simulated_library_dir() / "nvidia-smi"
KERNELS, KERNEL_NS = 16, 20_000_000


@pytest.fixture
def node(tmp_path: Path) -> Iterator[CudaNode]:
    made = CudaNode(tmp_path / "node.state", "2xT4")
    yield made
    made.close()


def smi(node: CudaNode, *words: str) -> subprocess.CompletedProcess[str]:
    command = [str(SMI), *words]
    return subprocess.run(
        command, capture_output=True, text=True, env=node.environment(), timeout=60, check=False, errors="replace"
    )


def switches_of_two(node: CudaNode) -> int:
    """Return how often the card switched between two contexts that both had work all the time."""
    before = node.device(0)["switch_count"]
    pair = [
        subprocess.Popen(
            [str(program("sim_mps_client"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=node.environment(),
        )
        for _ in range(2)
    ]
    for one in pair:
        assert one.stdout is not None
        assert one.stdout.readline().startswith("ready 0 ")
    for one in pair:
        assert one.stdin is not None
        one.stdin.write(f"spin {KERNELS} {KERNEL_NS}\n")
        one.stdin.flush()
    for one in pair:
        assert one.communicate(timeout=60)[0].split()[-1] == "0"
    return int(node.device(0)["switch_count"]) - int(before)


@pytest.mark.skipif(os.geteuid() != 0, reason="the driver lets root alone set the length of turns")
def test_long_turns_pass_less_often_than_short_ones_and_the_default_lies_between(node: CudaNode) -> None:
    found = {}
    for number in (1, 0, 3):
        assert smi(node, "compute-policy", "-i", "0", f"--set-timeslice={number}").returncode == 0
        found[number] = switches_of_two(node)
    assert found[1] > 1.4 * found[0] > 1.4 * 3 * found[3] > 0, found


@pytest.mark.skipif(os.geteuid() != 0, reason="the driver lets root alone set the length of turns")
def test_class_is_each_cards_own_and_is_shown(node: CudaNode) -> None:
    uuid = str(node.device(1)["uuid"])
    assert smi(node, "compute-policy", "-i", uuid, "--set-timeslice", "2").stdout == "All done.\n"
    assert "Default" in smi(node, "compute-policy", "-i", "0", "-l").stdout
    both = smi(node, "compute-policy", "--list").stdout
    assert "Default" in both
    assert f"{uuid}  Timeslice: Medium" in both
    assert [node.device(i)["timeslice"] for i in range(2)] == [0, 2]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ((), 2),
        (("-q",), 2),
        (("compute-policy",), 2),
        (("compute-policy", "-l", "--set-timeslice", "1"), 2),
        (("compute-policy", "--set-timeslice", "4"), 2),
        (("compute-policy", "--set-timeslice", "x" * 5000), 2),
        (("compute-policy", "-i", "2", "-l"), 6),
        (("compute-policy", "-i", "GPU-none", "-l"), 6),
        (("compute-policy", "-i", "," * 5000, "-l"), 6),
    ],
)
def test_what_the_tool_does_not_understand_changes_nothing(node: CudaNode, words: tuple[str, ...], code: int) -> None:
    done = smi(node, *words)
    assert done.returncode == code, done.stdout
    assert done.stdout
    assert [node.device(i)["timeslice"] for i in range(2)] == [0, 0]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_only_root_sets_it(node: CudaNode) -> None:
    node.state.parent.chmod(0o755)
    for directory in list(node.state.parents)[:4]:
        directory.chmod(0o755)
    done = subprocess.run(
        [SMI, "compute-policy", "--set-timeslice", "1"],
        capture_output=True, text=True, env=node.environment(), timeout=60, check=False, user=65534,
    )  # fmt: skip
    assert (done.returncode, "Insufficient Permissions" in done.stdout) == (4, True)


def test_node_that_is_damaged_or_not_there_is_no_driver(node: CudaNode, tmp_path: Path) -> None:
    for state in (tmp_path / "none", tmp_path / "text"):
        if state.name == "text":
            state.write_text("not a node")
        done = subprocess.run(
            [SMI, "compute-policy", "-l"],
            capture_output=True, text=True, env=os.environ | {"CALABASH_SIM": str(state)}, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 9
    assert simctl("show", node.state, "--json").returncode == 0
