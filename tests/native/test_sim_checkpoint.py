"""Tests of checkpoints of the simulated driver: a process is removed from its card and restored."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.native.mps_world import Service
from tests.native.sim_cuda_programs import CudaNode, ask

MIB = 1 << 20
OK, INVALID, OUT_OF_MEMORY, WRONG_STATE, NOT_READY, NOT_SUPPORTED = 0, 1, 2, 401, 600, 801
RUNNING, LOCKED, CHECKPOINTED = -1, -2, -3
WORK_NS = 3_000_000_000  # the kernel that ``target`` starts when it is told to work


@pytest.fixture
def node(tmp_path: Path) -> Iterator[CudaNode]:
    made = CudaNode(tmp_path / "node.state", "A100-40GB")
    yield made
    made.close()


def act(node: CudaNode, pid: object, letters: str, *more: object) -> list[int]:
    return [int(word) for word in node.run("sim_cuda_checkpoint", "act", pid, letters, *more).split()]


def held(node: CudaNode) -> int:
    """Return the MiB of the card that are allocated."""
    return int(node.device()["alloc_bytes"]) // MIB


def test_each_call_needs_its_state_and_leads_to_the_next(node: CudaNode) -> None:
    pid = node.start("sim_cuda_checkpoint", "target", 64).pid
    assert act(node, pid, "SUCR") == [RUNNING, WRONG_STATE, WRONG_STATE, WRONG_STATE]
    assert act(node, pid, "LSLR") == [OK, LOCKED, WRONG_STATE, WRONG_STATE]
    assert act(node, pid, "CSCU") == [OK, CHECKPOINTED, WRONG_STATE, WRONG_STATE]
    assert act(node, pid, "RSTUS") == [OK, LOCKED, OK, OK, RUNNING]
    assert act(node, 1, "LCRUST") == [INVALID] * 6, "that is no process of this node"


def test_checkpointed_process_holds_nothing_and_finds_its_memory_as_it_was(node: CudaNode) -> None:
    target = node.start("sim_cuda_checkpoint", "target", 512)
    assert held(node) == 512
    assert act(node, target.pid, "LC") == [OK, OK]
    device = node.device()
    assert (device["used_bytes"], device["alloc_bytes"]) == (0, 0)
    assert act(node, target.pid, "RU") == [OK, OK]
    assert held(node) == 512
    assert ask(target) == "used"


def test_locked_process_waits_at_its_next_call_until_it_is_unlocked(node: CudaNode) -> None:
    target = node.start("sim_cuda_checkpoint", "target", 64)
    assert act(node, target.pid, "L") == [OK]
    assert target.stdin is not None
    assert target.stdout is not None
    target.stdin.write("\n")
    target.stdin.flush()
    assert act(node, target.pid, "CRS") == [OK, OK, LOCKED]
    assert held(node) == 64, "it has not allocated the little more for which it was asked"
    assert act(node, target.pid, "U") == [OK]
    assert target.stdout.readline() == "used\n"


def test_what_was_posted_is_waited_for_and_a_timeout_leaves_the_process_running(node: CudaNode) -> None:
    target = node.start("sim_cuda_checkpoint", "target", 64)
    assert target.stdin is not None
    assert target.stdout is not None
    busy_ns = node.device()["busy_ns"]
    target.stdin.write("work\n")
    target.stdin.flush()
    assert target.stdout.readline() == "used\n"
    assert act(node, target.pid, "LS", 20) == [NOT_READY, RUNNING]
    assert act(node, target.pid, "LC") == [OK, OK]
    assert node.device()["busy_ns"] - busy_ns >= WORK_NS, "the lock waits until all posted work is done"


def test_without_room_it_stays_checkpointed_until_there_is_some(node: CudaNode) -> None:
    target = node.start("sim_cuda_checkpoint", "target", 20_000)
    assert act(node, target.pid, "LC") == [OK, OK]
    other = node.start("sim_cuda_checkpoint", "target", 30_000)
    assert act(node, target.pid, "RS") == [OUT_OF_MEMORY, CHECKPOINTED]
    assert held(node) == 30_000
    other.kill()
    other.wait()
    assert act(node, target.pid, "RU") == [OK, OK]
    assert ask(target) == "used"


def test_end_of_a_checkpointed_process_leaves_nothing(node: CudaNode) -> None:
    target = node.start("sim_cuda_checkpoint", "target", 512)
    assert act(node, target.pid, "LC") == [OK, OK]
    target.kill()
    target.wait()
    assert act(node, target.pid, "RS") == [INVALID, INVALID]
    assert node.device()["used_bytes"] == 0


def test_process_may_take_itself_off_its_card(node: CudaNode) -> None:
    assert act(node, "self", "LCSRUS") == [OK, OK, CHECKPOINTED, OK, OK, RUNNING]


def test_another_card_can_not_stand_in(node: CudaNode) -> None:
    target = node.start("sim_cuda_checkpoint", "target", 64)
    assert act(node, target.pid, "LCXS") == [OK, OK, NOT_SUPPORTED, CHECKPOINTED]


def test_clients_of_the_multi_process_service_are_not_checkpointed(node: CudaNode, tmp_path: Path) -> None:
    service = Service(node, tmp_path / "mps")
    try:
        client: subprocess.Popen[str] = node.start("sim_cuda_checkpoint", "target", 64, **service.service_environment())
        assert act(node, client.pid, "L") == [NOT_SUPPORTED]
    finally:
        service.close()
