"""Tests that memory behaves as with a local driver: the same program prints the same lines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.native.remote_world import RemoteNode
from tests.native.sim_cuda_programs import CudaNode

CHECKS = {
    "rows and slices, whatever lies between them": "boxes",
    "errors of copies": "box_errors",
    "arrays": "arrays",
    "fills": "fills",
    "copies by what an address is": "unified",
    "the source of an asynchronous copy": "captured_source",
    "mapped pinned memory": "mapped",
    "managed memory": "managed",
    "managed memory of a context that ends": "managed_ends",
    "what a pointer is": "attributes",
    "a card that is full": "full",
    "both ways through pinned memory": "through_pinned",
    "pinned memory in graphs": "captured_pinned",
    "pinned memory that a function fills": "after_a_function",
    "pinned memory of all sizes, while contexts end": "into_pinned",
}


@pytest.fixture
def near(tmp_path: Path) -> Iterator[CudaNode]:
    made = CudaNode(tmp_path / "near.state", "T4")
    yield made
    made.close()


@pytest.fixture
def far(tmp_path: Path) -> Iterator[RemoteNode]:
    made = RemoteNode(tmp_path / "far.state", "T4")
    yield made
    made.close()


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS.keys())
def test_memory_is_the_same_near_and_far(near: CudaNode, far: RemoteNode, check: str) -> None:
    here = near.run("remote_memory", check)
    there = far.run("remote_memory", check)
    assert here.splitlines() == there.splitlines()
    assert len(here) > 8
    far.wait_for_workers()
    assert far.device()["used_bytes"] == 0


def test_what_a_remote_card_cannot_do_is_refused_and_its_attributes_say_so(far: RemoteNode) -> None:
    assert far.run("remote_memory", "refused") == "refused 1\n"
