"""Tests that the programs for the simulated driver get the same results through the forwarding driver."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.native.remote_world import RemoteNode
from tests.native.test_sim_cuda import MEMORY, ORDER, OVERLAP, WAITS

# What does not travel yet; each is to leave this list.
LOCAL_ONLY = {
    "host",  # a kernel is given the program's own registered pages
    "descriptor",
    "ipc",  # workers are shut in: none opens another's memory through /proc
}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[RemoteNode]:
    made = RemoteNode(tmp_path / "node.state", "A100-40GB,T4")
    yield made
    made.close()


def _travelling(checks: dict[str, str]) -> list[str]:
    return [check for check in checks.values() if check not in LOCAL_ONLY]


@pytest.mark.parametrize("check", _travelling(MEMORY))
def test_memory_is_as_it_is_without_a_network_between(node: RemoteNode, check: str) -> None:
    node.run("sim_cuda_memory", check)
    node.wait_for_workers()
    assert node.device()["used_bytes"] == 0


@pytest.mark.parametrize("check", _travelling(ORDER))
def test_order_is_as_it_is_without_a_network_between(node: RemoteNode, check: str) -> None:
    node.run("sim_cuda_order", check)
    node.wait_for_workers()
    assert node.device()["used_bytes"] == 0


def test_copy_to_pageable_memory_has_come_when_its_call_returns(node: RemoteNode) -> None:
    node.run("sim_cuda_order", "pageable")
    node.wait_for_workers()


@pytest.mark.parametrize("check", _travelling(WAITS))
def test_who_waits_is_as_it_is_without_a_network_between(node: RemoteNode, check: str) -> None:
    node.run("sim_cuda_waits", check)
    node.wait_for_workers()
    assert node.device()["used_bytes"] == 0


@pytest.mark.parametrize("check", _travelling(OVERLAP))
def test_kernels_run_side_by_side_as_without_a_network_between(node: RemoteNode, check: str) -> None:
    node.run("sim_cuda_overlap", check)
    node.wait_for_workers()
    assert node.device()["used_bytes"] == 0
