"""Tests of the tool for simulated nodes: what it creates, and its errors for files that are damaged or not its own."""

from __future__ import annotations

import json
import os
import random
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.native.simnode import SIMCTL, Node, compile_holder, simctl

MAGIC = b"SIMNODE1"


@pytest.fixture(scope="module")
def holder() -> Path:
    return compile_holder()


@pytest.fixture
def node(tmp_path: Path, holder: Path) -> Iterator[Node]:
    (tmp_path / "lab").mkdir()
    made = Node(tmp_path / "lab" / "node.state", "2xA100-40GB,T4", holder)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("spelling", "model"),
    [
        ("A100-40GB", "A100-40GB"),
        ("a100-40", "A100-40GB"),
        ("A100", "A100-40GB"),
        ("NVIDIA A100-SXM4-80GB", "A100-80GB"),
        ("h200", "H200-141GB"),
        ("Tesla T4", "T4"),
        ("v100_32gb", "V100-32GB"),
        ("B200", "B200-180GB"),
    ],
)
def test_model_is_known_by_the_names_that_people_type(tmp_path: Path, holder: Path, spelling: str, model: str) -> None:
    node = Node(tmp_path / "n", spelling, holder)
    assert [d["model"] for d in node.show()["devices"]] == [model]


def test_list_of_cards_is_made_in_its_order(node: Node) -> None:
    shown = node.show()
    assert [d["model"] for d in shown["devices"]] == ["A100-40GB", "A100-40GB", "T4"]
    assert shown["name"] == "lab"
    assert len({d["uuid"] for d in shown["devices"]}) == 3
    assert len({d["pci_bus_id"] for d in shown["devices"]}) == 3


def test_same_seed_makes_the_same_cards_and_no_seed_makes_others(tmp_path: Path, holder: Path) -> None:
    def uuids(name: str, seed: int) -> list[str]:
        return [d["uuid"] for d in Node(tmp_path / name, "2xT4", holder, seed).show()["devices"]]

    assert uuids("a", 7) == uuids("b", 7)
    assert uuids("c", 8) != uuids("a2", 7)
    for name in ("d", "e"):
        assert simctl("create", tmp_path / name, "--gpus", "T4").returncode == 0
    assert (tmp_path / "d").read_bytes()[:8] == MAGIC
    assert simctl("show", tmp_path / "d", "--json").stdout != simctl("show", tmp_path / "e", "--json").stdout


def test_cards_with_nvlink_are_joined_with_their_like_and_no_others(tmp_path: Path, holder: Path) -> None:
    devices = Node(tmp_path / "n", "2xA100-40GB,2xH100,2xT4", holder).show()["devices"]
    assert [d["nvlink_peers"] for d in devices] == [[1], [0], [3], [2], [], []]
    assert [d["numa_node"] for d in devices] == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize(
    ("gpus", "part"),
    [
        ("T5", "known models: V100-32GB, P40, T4"),
        ("17xT4", "1 to 16"),
        ("0xT4", "1 to 16"),
        ("8xT4,9xT4", "1 to 16"),
        ("4T4", "like 4xA100-40GB"),
        ("", "empty part"),
        ("T4,,T4", "empty part"),
        ("x" * 600, "too long"),
        ("-1xT4", "unknown GPU model"),
        ("99999999999999999999xT4", "1 to 16"),
    ],
)
def test_list_that_makes_no_sense_is_refused_with_a_hint(tmp_path: Path, gpus: str, part: str) -> None:
    done = simctl("create", tmp_path / "n", f"--gpus={gpus}")
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert part in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_creating_twice_leaves_the_first_node_alone(node: Node) -> None:
    before = node.show()["devices"]
    again = simctl("create", node.state, "--gpus", "T4")
    assert again.returncode == 1
    assert "exists already" in again.stderr
    assert node.show()["devices"] == before


def test_of_many_creators_at_once_exactly_one_succeeds(tmp_path: Path) -> None:
    state = tmp_path / "n"
    with ThreadPoolExecutor(8) as pool:
        done = list(pool.map(lambda i: simctl("create", state, "--gpus", f"{i + 1}xT4"), range(8)))
    made = [i for i, d in enumerate(done) if d.returncode == 0]
    assert len(made) == 1
    assert all("exists already" in d.stderr for i, d in enumerate(done) if i not in made)
    assert [f.name for f in tmp_path.iterdir()] == ["n"]
    assert simctl("show", state, "--json").stdout.count('"model":"T4"') == made[0] + 1


def test_full_disk_is_said_and_leaves_nothing_behind(tmp_path: Path) -> None:
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4k", "none", tmp_path], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("needs the right to mount a small file system")
    try:
        done = simctl("create", tmp_path / "n", "--gpus", "T4")
        assert done.returncode == 1
        assert "full" in done.stderr or "No space" in done.stderr
        assert list(tmp_path.iterdir()) == []
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def test_directory_that_is_missing_is_said(tmp_path: Path) -> None:
    done = simctl("create", tmp_path / "no" / "n", "--gpus", "T4")
    assert done.returncode == 1
    assert "no such directory" in done.stderr


@pytest.mark.parametrize("verb", ["show", "unserved", "destroy"])
@pytest.mark.parametrize(
    "content", [b"", b"hello", MAGIC, b"\0" * 100, b"\xff" * 1_000_000, MAGIC + b"\0" * 50_000_000]
)
def test_foreign_or_cut_file_is_named_so_and_not_removed(tmp_path: Path, verb: str, content: bytes) -> None:
    state = tmp_path / "n"
    state.write_bytes(content)
    done = simctl(verb, state)
    assert done.returncode == 1
    assert "not a node file" in done.stderr or "damaged" in done.stderr
    assert state.exists()


def test_force_removes_a_damaged_node_but_never_a_foreign_file(tmp_path: Path) -> None:
    foreign, damaged = tmp_path / "foreign", tmp_path / "damaged"
    foreign.write_bytes(b"my thesis")
    damaged.write_bytes(MAGIC + b"\xff" * 100)
    refused = simctl("destroy", foreign, "--force")
    assert refused.returncode == 1
    assert "not a node file" in refused.stderr
    assert foreign.read_bytes() == b"my thesis"
    assert simctl("destroy", damaged, "--force").returncode == 0
    assert not damaged.exists()


def test_node_that_is_cut_short_is_refused_at_every_length(node: Node) -> None:
    whole = node.state.read_bytes()[:200_000]
    for length in (0, 7, 8, 16, 100, 4096, 100_000):
        node.state.write_bytes(whole[:length])
        done = simctl("show", node.state)
        assert done.returncode == 1, length
        assert "not a node file" in done.stderr


def test_damaged_bytes_never_crash_the_tool(node: Node) -> None:
    """Flip bytes in sensitive parts (header, cards, faults, engine): the tool answers or reports an error, in time."""
    whole = node.state.read_bytes()
    used = len(whole.rstrip(b"\0"))
    dice = random.Random(2)
    outcomes: dict[int, int] = {}
    for _ in range(40):
        damaged = bytearray(whole)
        for _ in range(dice.choice((1, 3, 30))):
            at = dice.choice((dice.randrange(256), dice.randrange(min(used, 100_000)), dice.randrange(used)))
            damaged[at] = dice.randrange(256)
        node.state.write_bytes(damaged)
        done = simctl("show", node.state, "--json")
        assert done.returncode in (0, 1), (done.returncode, done.stderr)
        assert (done.returncode == 1) == done.stderr.startswith("error: ")
        if done.returncode == 0:
            assert len(json.loads(done.stdout)["devices"]) > 0
        outcomes[done.returncode] = outcomes.get(done.returncode, 0) + 1
    assert outcomes.get(1, 0) > 0, "no damage was ever noticed"


def test_node_in_use_is_not_destroyed_unless_forced(node: Node) -> None:
    holder = node.hold(0)
    refused = simctl("destroy", node.state)
    assert refused.returncode == 1
    assert "1 process still uses this node" in refused.stderr
    assert simctl("destroy", node.state, "--force").returncode == 0
    assert not node.state.exists()
    assert holder.end() == 0


def test_death_of_its_processes_frees_the_node(node: Node) -> None:
    holder = node.hold(1, size=1 << 30)
    held = node.show()
    assert held["devices"][1]["alloc_bytes"] == 1 << 30
    assert [p["pid"] for p in held["processes"]] == [holder.pid]
    holder.kill()
    freed = node.show()
    assert freed["devices"][1]["used_bytes"] == 0
    assert freed["devices"][1]["alloc_peak_bytes"] == 1 << 30
    assert freed["processes"] == []
    assert simctl("destroy", node.state).returncode == 0


def test_faults_are_shown_and_recovery_ends_them(node: Node) -> None:
    node.inject(0, "slow", "300%")
    node.inject(0, "alloc-fail", 3)
    node.inject(0, "ecc-double")
    node.inject(1, "lost")
    node.inject(node.show()["devices"][2]["uuid"], "xid", 31)
    first, second, third = node.show()["devices"]
    assert (first["slow_permille"], first["alloc_fail_countdown"], first["ecc_volatile_double"]) == (3000, 3, 1)
    assert [x["xid"] for x in first["xids"]] == [48]
    assert second["lost"] is True
    assert [x["xid"] for x in second["xids"]] == [79]
    assert [x["xid"] for x in third["xids"]] == [31]
    node.inject("all", "recover")
    first, second, third = node.show()["devices"]
    assert (first["slow_permille"], first["alloc_fail_countdown"], first["ecc_volatile_double"]) == (1000, 0, 0)
    assert first["ecc_aggregate_double"] == 1
    assert second["lost"] is False


@pytest.mark.parametrize(
    "words",
    [
        ("--gpu", "7", "lost"),
        ("--gpu", "GPU-none", "lost"),
        ("--gpu", "0", "fire"),
        ("--gpu", "0", "xid"),
        ("--gpu", "0", "xid", "abc"),
        ("--gpu", "0", "xid", "0"),
        ("--gpu", "0", "slow", "0%"),
        ("--gpu", "0", "lost", "5"),
        ("--gpu", "0", "alloc-fail", "101%"),
    ],
)
def test_fault_that_makes_no_sense_changes_nothing(node: Node, words: tuple[str, ...]) -> None:
    before = node.show()["devices"]
    done = simctl("inject", node.state, *words)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert node.show()["devices"] == before


@pytest.mark.parametrize(
    "words", [(), ("show",), ("create", "x"), ("inject", "x", "lost"), ("dance", "x"), ("show", "--what")]
)
def test_wrong_usage_ends_with_2_and_tells_how(words: tuple[str, ...]) -> None:
    done = simctl(*words)
    assert done.returncode == 2
    assert "usage: calabash-simctl create NODE" in done.stderr


def test_tool_is_built() -> None:
    assert SIMCTL.is_file(), "run: make native"


def unserve(node: Node) -> None:
    """Call one unimplemented NVML function twice."""
    node.nvml(
        """
        for _ in range(2):
            try:
                nvmlDeviceGetEncoderCapacity(handles()[0], 0)
            except NVMLError:
                pass
        answer = None
        """
    )


def test_show_is_short_and_counts_what_is_not_served_in_one_line(node: Node) -> None:
    assert "not served" not in simctl("show", node.state).stdout
    unserve(node)
    shown = simctl("show", node.state).stdout
    assert "not served: 1 function, 0 kernels (listed by --all)" in shown
    assert "nvmlDeviceGetEncoderCapacity" not in shown


def test_show_all_lists_functions_apart_from_kernels(node: Node) -> None:
    unserve(node)
    shown = simctl("show", node.state, "--all").stdout
    assert "functions that the simulation does not serve (calls):\n       2  nvmlDeviceGetEncoderCapacity\n" in shown
    assert "kernels that" not in shown


def test_show_says_what_is_wrong_with_a_card(node: Node) -> None:
    for fault in (("xid", 31), ("xid", 79), ("slow", "300%"), ("alloc-fail", 3)):
        node.inject(1, *fault)
    lines = simctl("show", node.state).stdout.splitlines()
    assert lines[2].endswith("  ok")
    assert lines[3].endswith("  lost xid:79(2) slow:300% alloc-fail")


def test_node_is_found_by_its_name_below_the_home_as_well_as_by_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CALABASH_HOME", str(tmp_path))
    (tmp_path / "sim" / "lab-1").mkdir(parents=True)
    assert simctl("create", "lab-1", "--gpus", "T4").returncode == 0
    state = tmp_path / "sim" / "lab-1" / "node.state"
    assert simctl("show", "lab-1").stdout == simctl("show", state).stdout
    assert simctl("inject", "lab-1", "--gpu", 0, "lost").returncode == 0
    assert simctl("destroy", "lab-1").returncode == 0
    assert not state.exists()
    missing = simctl("show", "lab-1")
    assert missing.returncode == 1
    assert missing.stderr.startswith(f"error: no node at {state}\nhint: ")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run the tool as another user")
def test_home_of_an_ordinary_user_is_below_the_home_directory() -> None:
    environment = {"HOME": "/nowhere"}
    done = subprocess.run(
        [SIMCTL, "show", "lab"], env=environment, user=65534, capture_output=True, text=True, check=False
    )
    assert done.stderr.startswith("error: no node at /nowhere/.local/share/calabash/sim/lab/node.state\n")
    homeless = subprocess.run([SIMCTL, "show", "lab"], env={}, user=65534, capture_output=True, text=True, check=False)
    assert homeless.stderr == (
        "error: there is no home to look for node lab in\nhint: set CALABASH_HOME, or give a path with a '/'\n"
    )
