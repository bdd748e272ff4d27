"""Tests of green contexts on a slice: their cost, and that launches in them are limited like all others."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.native.shim_world import GIB, MIB, OUT_OF_MEMORY, Slot, World, program

from calabash.model.request import AllocationId, ComputePolicy
from calabash.node.slots.content import SlotDevice, SlotSpec
from calabash.node.slots.files import create_slot

CONTEXT = 414  # MiB of the simulated card
GREEN = 16


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World.create(tmp_path)


def test_green_context_costs_little_beside_the_primary_one_whose_memory_it_uses(world: World) -> None:
    slot = world.slot(cap=GIB, context=CONTEXT * MIB)
    used = dict(line.split() for line in slot.run(program("green"), "book").splitlines())
    assert {when: int(mib) for when, mib in used.items()} == {
        "first": CONTEXT + GREEN,
        "second": CONTEXT + 2 * GREEN,
        "memory": CONTEXT + 2 * GREEN + 8,
        "one": CONTEXT + GREEN + 8,
        "none": CONTEXT + 8,
        "released": CONTEXT + GREEN + 8,
        "again": CONTEXT,
    }
    assert slot.usage.device(0).used_bytes == 0
    assert world.device()["used_bytes"] == 0


def test_flood_of_green_contexts_stays_within_the_slice(world: World) -> None:
    slot = world.slot(cap=(CONTEXT + 5 * GREEN) * MIB, context=CONTEXT * MIB)
    assert slot.run(program("green"), "flood") == f"5 {OUT_OF_MEMORY}"
    assert world.device()["used_peak_bytes"] <= (CONTEXT + 5 * GREEN) * MIB
    small = world.slot("small", cap=(CONTEXT - 1) * MIB, context=CONTEXT * MIB)
    assert small.run(program("green"), "flood") == f"0 {OUT_OF_MEMORY}", "the primary context has no room"
    assert small.usage.device(0).used_bytes == 0


@pytest.mark.parametrize(("policy", "priority"), [(ComputePolicy.FIXED, -5), (ComputePolicy.BEST_EFFORT, 0)])
def test_launches_on_streams_of_green_contexts_are_held_to_the_share_and_charged(
    world: World, policy: ComputePolicy, priority: int
) -> None:
    device = SlotDevice(uuid=world.uuids()[0], memory_limit_bytes=GIB, core_percent=30, policy=policy)
    create_slot(world.path / "held", SlotSpec(allocation=AllocationId("held"), devices=(device,)))
    slot = Slot(world=world, path=world.path / "held")
    launched, seconds, given = slot.run(program("green"), "spin", "1.5").split()
    assert int(given) == priority
    busy_s = world.device()["busy_ns"] / 1e9
    assert busy_s / float(seconds) == pytest.approx(0.3, abs=0.1)
    charged_s = slot.usage.device(0).charged_ns / 1e9
    assert charged_s >= 0.9 * busy_s
    assert int(launched) > 50
