"""Tests of graphs: their memory is charged when it is allocated, and captured streams are not disturbed."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.native.shim_world import GIB, MIB, OUT_OF_MEMORY, SUCCESS, Slot, World

pytestmark = pytest.mark.aarch64


@pytest.fixture
def slot(tmp_path: Path) -> Slot:
    return World.create(tmp_path).slot(cap=GIB)


def stages(output: str) -> dict[str, list[int]]:
    return {line.split()[0]: [int(word) for word in line.split()[1:]] for line in output.splitlines()}


def test_memory_nodes_are_counted_while_the_device_holds_their_memory(slot: Slot) -> None:
    seen = stages(slot.tenant("graph", 64 * MIB))
    assert seen["launched"][0] == SUCCESS
    assert seen["launched"][1] in (0, 64 * MIB)  # a driver may keep it for the next launch
    assert seen["trimmed"] == [0]
    assert seen["kept"] == [SUCCESS, 64 * MIB]
    assert seen["freed"] == [0]
    assert slot.world.device()["alloc_bytes"] == 0


def test_graph_that_would_exceed_the_cap_is_refused(slot: Slot) -> None:
    seen = stages(slot.tenant("graph", 2 * GIB))
    assert seen["launched"] == [OUT_OF_MEMORY, 0]
    assert seen["kept"] == [OUT_OF_MEMORY, 0]
    assert slot.world.device()["alloc_peak_bytes"] == 0


def test_graph_that_just_fits_can_be_launched_again_and_again(slot: Slot) -> None:
    seen = stages(slot.tenant("graph", GIB))
    assert seen["launched"][0] == SUCCESS
    assert slot.world.device()["alloc_peak_bytes"] == GIB


def test_allocation_under_capture_costs_nothing_until_the_graph_is_launched(slot: Slot) -> None:
    seen = stages(slot.tenant("capture", 64 * MIB))
    assert seen["captured"] == [0]
    assert seen["launched"][0] in (0, 64 * MIB)
    assert seen["gone"] == [0]
    assert slot.usage.device(0).peak_bytes >= 64 * MIB


def test_captured_graph_that_would_exceed_the_cap_is_refused(slot: Slot) -> None:
    process = slot.start(*slot.tenant_command("capture", 2 * GIB))
    out, _ = process.communicate(timeout=60)
    assert "captured 0" in out
    assert f"answers {OUT_OF_MEMORY}" in out
    assert slot.world.device()["alloc_peak_bytes"] == 0
