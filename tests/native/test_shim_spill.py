"""Tests of spilling: the cap is exact, unpageable memory keeps to its part, and programs see few differences."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tests.native.shim_world import GIB, MIB, OUT_OF_MEMORY, SUCCESS, Slot, World, program

CAP, SPILL = 20 * GIB, 8 * GIB  # 12 GiB are promised on the card; 4 GiB of them at once, 8 GiB for pages to come to
CONTEXT = 104 * MIB
NOT_SUPPORTED = 801
PAGED = ("linear", "managed", "pitched", "async", "pool")
EXACT = str(1 << 0 | 1 << 1 | 1 << 5)  # linear, managed and mapped memory: what the ledger counts is what the card does
FIXED = ("mapped", "array", "volume")


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World.create(tmp_path, "1xT4")  # 14.6 GiB for programs


@pytest.fixture
def slot(world: World) -> Slot:
    return world.slot(cap=CAP, spill=SPILL)


def _pageable_bytes(slot: Slot) -> int:
    procs = slot.usage._page.proc
    return sum(procs[i].pageable_units[0] * 512 for i in range(1024))


@pytest.mark.aarch64
@pytest.mark.parametrize("family", PAGED)
def test_what_can_be_paged_fills_the_whole_cap(slot: Slot, family: str) -> None:
    taken, answer = slot.tenant("fill", family, 512 * MIB).split()
    assert int(answer) == OUT_OF_MEMORY
    assert int(taken) * 512 * MIB <= CAP
    assert 0.97 * CAP <= slot.usage.device(0).peak_bytes <= CAP
    assert slot.world.device()["used_peak_bytes"] <= 15 * GIB


@pytest.mark.aarch64
@pytest.mark.parametrize("family", FIXED)
def test_what_cannot_be_paged_fills_its_part_of_the_card(slot: Slot, family: str) -> None:
    taken, answer = slot.tenant("fill", family, 512 * MIB).split()
    assert int(answer) == OUT_OF_MEMORY
    assert int(taken) * 512 * MIB == CAP - SPILL
    assert _pageable_bytes(slot) == 0


def test_program_that_holds_the_cap_has_only_what_was_given_at_once_on_the_card_for_good(slot: Slot) -> None:
    with slot.start_holder(4 * GIB):
        assert _pageable_bytes(slot) == 0
        with slot.start_holder(6 * GIB):
            assert _pageable_bytes(slot) == 6 * GIB
            assert slot.tenant("fill", "mapped", 512 * MIB).split() == ["16", str(OUT_OF_MEMORY)]


@pytest.mark.aarch64
def test_every_family_is_given_back_to_the_byte_beyond_the_card(slot: Slot) -> None:
    with slot.start_holder(5 * GIB):
        for line in slot.tenant("families", 3_000_000).splitlines():
            name, taken, missing = line.split()
            assert 3_000_000 <= int(taken) <= 40 * MIB, f"{name} was counted as {taken} bytes"
            assert int(missing) == 0, f"{name} leaves {missing} bytes charged"
        assert slot.usage.device(0).used_bytes == 5 * GIB == _pageable_bytes(slot)


@pytest.mark.aarch64
def test_program_is_told_the_whole_cap_however_large_the_card_is(slot: Slot) -> None:
    assert slot.tenant("view").split() == [str(CAP), str(CAP), str(CAP), "1"]


def test_managed_memory_has_no_handles_for_others(slot: Slot) -> None:
    process = slot.start(*slot.tenant_command("beyond", GIB), CALABASH_VERBOSE="1")
    out, err = process.communicate(timeout=60)
    taken, managed, ipc, dma, left = (int(word) for word in out.split())
    assert (taken, managed, left) == (CAP, 1, GIB)
    assert (ipc, dma) == (NOT_SUPPORTED, NOT_SUPPORTED)
    assert "no IPC handle" in err
    assert "hint: " in err


def test_program_is_left_alone_with_messages_unless_it_asks(slot: Slot) -> None:
    process = slot.start(*slot.tenant_command("beyond", GIB))
    assert process.communicate(timeout=60)[1] == ""


def test_driver_never_refuses_what_was_let_through_however_many_ask(world: World) -> None:
    cap, spill = 96 * MIB, 32 * MIB
    total = world.device()["memory_total_bytes"] - world.device()["memory_reserved_bytes"]
    bystander = world.slot("bystander", cap=20 * GIB)
    slot = world.slot(cap=cap, spill=spill)
    with bystander.start_holder(total - (cap - spill) - 9 * CONTEXT):  # leaves the promised part and the contexts
        processes = [slot.start(program("tenant"), "hammer", "3", str(seed), EXACT) for seed in range(8)]
        refused = 0
        for process in processes:
            out, err = process.communicate(timeout=120)
            assert process.returncode == 0, out + err
            refused += int(out.split()[1])
    assert refused > 0, "the cap was never reached, so nothing was tried"
    assert slot.usage.device(0).peak_bytes <= cap
    assert world.device()["denied_count"] == 0
    slot.reap_all()
    assert slot.usage.device(0).used_bytes == 0


def test_processes_killed_at_random_leave_nothing_pageable_behind(world: World) -> None:
    slot = world.slot(cap=128 * MIB, spill=48 * MIB)
    running = [slot.start(program("tenant"), "hammer", "100", str(seed)) for seed in range(3)]
    for turn in range(40):
        time.sleep(0.01 + 0.0007 * (turn % 13))  # anywhere between start-up and full swing
        victim = running.pop(0)
        victim.kill()
        victim.communicate()
        running.append(slot.start(program("tenant"), "hammer", "100", str(turn)))
    for process in running:
        process.kill()
        process.communicate()
    assert slot.tenant("fill", "linear", 2 * MIB).split() == ["64", str(OUT_OF_MEMORY)]
    slot.reap_all()
    assert slot.usage.device(0).used_bytes == 0
    assert slot.usage.device(0).peak_bytes <= 128 * MIB


def test_slot_without_spilling_says_so_in_words_that_an_older_library_reads(world: World) -> None:
    plain, spilling = world.slot("plain"), world.slot("spilling", cap=CAP, spill=SPILL)
    assert (plain.limits._page.version, plain.usage._page.version) == (1, 1)
    assert (spilling.limits._page.version, spilling.usage._page.version) == (2, 2)
    assert plain.tenant("alloc", MIB) == spilling.tenant("alloc", MIB) == str(SUCCESS)
