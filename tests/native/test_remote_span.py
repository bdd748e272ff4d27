"""Tests of a program with devices of two servers: it sees what a program with two local devices sees."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.native.sim_cuda_programs import CudaNode, program
from tests.native.span_world import SpanWorld
from tests.native.test_sim_cuda import MEMORY

LOCAL_ONLY = {"host", "descriptor", "ipc"}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[SpanWorld]:
    made = SpanWorld(tmp_path, "A100-40GB", "T4")
    yield made
    made.close()


@pytest.fixture
def local(tmp_path: Path) -> Iterator[CudaNode]:
    made = CudaNode(tmp_path / "local.state", "A100-40GB,T4")
    yield made
    made.close()


@pytest.mark.parametrize("check", ["copies", "order", "library", "stack", "pointers", "pinned"])
def test_two_servers_give_what_two_local_devices_give(world: SpanWorld, local: CudaNode, check: str) -> None:
    assert world.run("remote_span", check) == local.run("remote_span", check)
    assert world.ended()


def test_devices_of_two_servers_are_apart_and_say_so(world: SpanWorld) -> None:
    world.run("remote_span", "apart")
    assert world.ended()


def test_child_of_the_program_has_no_driver_and_its_parent_keeps_its_own(world: SpanWorld) -> None:
    world.run("remote_span", "child")
    assert world.ended()


def test_visible_devices_are_chosen_among_those_of_all_servers(world: SpanWorld) -> None:
    both = world.run("remote_span", "chosen").split("\n")[:2]
    assert both == ["NVIDIA A100-SXM4-40GB", "Tesla T4"]
    assert world.run("remote_span", "chosen", CUDA_VISIBLE_DEVICES="1,0").split("\n")[:2] == both[::-1]
    assert world.run("remote_span", "chosen", CUDA_VISIBLE_DEVICES="1").split("\n")[:1] == both[1:]


def test_loss_of_one_server_leaves_the_contexts_of_the_other(world: SpanWorld, local: CudaNode) -> None:
    err = world.directory / "lost.err"
    with err.open("w") as told:
        process = subprocess.Popen(
            [str(program("remote_span")), "lost"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=told,
            text=True,
            env=world.environment(),
        )
        with process:
            assert process.stdout is not None
            assert process.stdin is not None
            assert process.stdout.readline() == "ready\n", err.read_text()
            world.nodes[1].host.kill()
            for pid in world.nodes[1].workers():
                subprocess.run(["kill", "-9", str(pid)], check=True)
            process.stdin.write("gone\n")
            process.stdin.flush()
            assert process.stdout.readline().startswith("left "), err.read_text()
    assert process.returncode == 0, err.read_text()
    world.nodes[0].wait_for_workers()


@pytest.mark.parametrize("check", sorted(c for c in {*MEMORY.values()} if c not in LOCAL_ONLY))
def test_program_of_one_device_runs_in_a_span_as_without(world: SpanWorld, check: str) -> None:
    world.run("sim_cuda_memory", check)
    assert world.ended()


NVML = """
import json
from pynvml import *
nvmlInit()
handles = [nvmlDeviceGetHandleByIndex(i) for i in range(nvmlDeviceGetCount())]
print(json.dumps([
    [nvmlDeviceGetName(h) for h in handles],
    [nvmlDeviceGetIndex(nvmlDeviceGetHandleByUUID(nvmlDeviceGetUUID(h))) for h in handles],
    [nvmlDeviceGetMemoryInfo(h).total >> 30 for h in handles],
    nvmlDeviceOnSameBoard(handles[0], handles[2]),
]))
try:
    nvmlDeviceGetHandleByUUID("GPU-nobody")
except NVMLError_NotFound:
    nvmlShutdown()
"""


def test_nvml_shows_the_cards_of_all_servers(tmp_path: Path) -> None:
    world = SpanWorld(tmp_path, "2xA100-40GB", "T4")
    told = subprocess.run(
        [sys.executable, "-c", NVML], env=world.environment(), capture_output=True, text=True, timeout=60, check=False
    )
    world.close()
    assert told.returncode == 0, told.stderr
    names, indices, sizes, together = json.loads(told.stdout)
    assert names == ["NVIDIA A100-SXM4-40GB"] * 2 + ["Tesla T4"]
    assert indices == [0, 1, 2]
    assert sizes == [40, 40, 15]
    assert not together


def test_server_that_is_not_there_is_told_at_the_start(world: SpanWorld) -> None:
    lost = world.environment(CALABASH_REMOTE=f"span:unix:{world.nodes[0].socket}\nunix:{world.directory}/nobody")
    done = subprocess.run(
        [str(program("remote_span")), "chosen"], env=lost, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert "cannot reach" in done.stderr
    assert "cuInit(0) gave 100" in done.stderr
    assert world.ended()
