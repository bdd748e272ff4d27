"""Tests of interpreted PTX kernels together with the rest of the driver: contexts, graphs, managed memory, processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.native.sim_cuda_programs import CudaNode

CHECKS = {
    "a context that is destroyed ends a kernel that never would": "endless_and_destroyed",
    "captured launches run each time that their graph does": "in_graphs",
    "managed memory is the kernel's and the program's": "managed",
    "a child that is forked amid launches does not disturb them": "forked",
    "an illegal address is told at the next wait and stays": "sticks",
}


@pytest.mark.parametrize("check", CHECKS.values(), ids=list(CHECKS))
def test_kernels_meet_the_driver(tmp_path: Path, check: str) -> None:
    node = CudaNode(tmp_path / "node.state", "A100-40GB")
    node.run("sim_cuda_ptx", check)
    assert node.device()["used_bytes"] == 0
    node.close()


def test_process_with_an_endless_kernel_is_killed_like_any_other(tmp_path: Path) -> None:
    node = CudaNode(tmp_path / "node.state", "A100-40GB")
    process = node.start("sim_cuda_ptx", "endless_and_waiting")
    assert process.poll() is None
    process.kill()
    process.wait(timeout=60)
    assert node.device()["used_bytes"] == 0
    node.close()
