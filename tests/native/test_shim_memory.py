"""Tests of memory limits: every family of allocations is charged exactly, and freed exactly."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest
from tests.native.shim_world import GIB, MIB, OUT_OF_MEMORY, SUCCESS, Slot, World, program

FAMILIES = ("linear", "managed", "pitched", "async", "pool", "mapped", "array", "volume", "mipmap")
PROCESSES = 64


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World.create(tmp_path)


@pytest.fixture
def slot(world: World) -> Slot:
    return world.slot(cap=GIB)


@pytest.mark.aarch64
def test_every_kind_of_memory_is_charged_and_freed_exactly(slot: Slot) -> None:
    lines = [line.split() for line in slot.tenant("families", 3_000_000).splitlines()]
    assert [name for name, _, _ in lines] == list(FAMILIES)
    for name, taken, missing in lines:
        assert 3_000_000 <= int(taken) <= 40 * MIB, f"{name} was counted as {taken} bytes"
        assert int(missing) == 0, f"{name} leaves {missing} bytes charged"
    assert slot.usage.device(0).used_bytes == 0
    assert slot.world.device()["alloc_bytes"] == 0


@pytest.mark.aarch64
@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_of_allocations_fills_the_cap_exactly(world: World, family: str) -> None:
    cap = 256 * MIB
    slot = world.slot(cap=cap)
    _, answer = slot.tenant("fill", family, 2 * MIB).split()
    assert int(answer) == OUT_OF_MEMORY
    peak = world.device()["alloc_peak_bytes"]
    assert peak <= slot.usage.device(0).peak_bytes <= cap
    # A mipmapped array is charged as one block; the simulator places its levels one by one.
    filled = slot.usage.device(0).peak_bytes if family == "mipmap" else peak
    assert filled >= 0.995 * cap


@pytest.mark.aarch64
def test_small_allocations_use_all_of_the_cap(world: World) -> None:
    cap = 8 * MIB
    taken, answer = world.slot(cap=cap).tenant("fill", "linear", 1000).split()
    assert int(answer) == OUT_OF_MEMORY
    assert int(taken) * 1024 == cap == world.device()["alloc_peak_bytes"]


def test_cap_of_zero_means_no_cap(world: World) -> None:
    assert world.slot(cap=0).tenant("alloc", 30 * GIB) == str(SUCCESS)


def test_lower_cap_takes_effect_at_the_next_allocation(slot: Slot) -> None:
    process = slot.start(program("tenant"), "hold", str(512 * MIB))
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    assert slot.tenant("alloc", 256 * MIB) == str(SUCCESS)
    slot.limits.set_residual(0, 300 * MIB)
    assert slot.tenant("alloc", 256 * MIB) == str(OUT_OF_MEMORY)
    slot.limits.set_residual(0, 0)
    assert slot.tenant("alloc", 256 * MIB) == str(SUCCESS)
    process.kill()
    process.communicate()


def test_many_processes_that_allocate_every_kind_of_memory_never_exceed_the_cap_by_a_byte(world: World) -> None:
    cap = 192 * MIB
    slot = world.slot(cap=cap)
    processes = [slot.start(program("tenant"), "hammer", "4", str(seed)) for seed in range(PROCESSES)]
    taken = refused = 0
    for process in processes:
        out, err = process.communicate(timeout=200)
        assert process.returncode == 0, out + err
        done, denied = out.split()
        taken, refused = taken + int(done), refused + int(denied)
    assert taken > PROCESSES
    assert refused > 0, "the cap was never reached, so nothing was tried"
    device = world.device()
    assert device["alloc_peak_bytes"] <= cap
    assert device["alloc_bytes"] == 0
    assert slot.usage.device(0).peak_bytes <= cap
    slot.reap_all()
    assert slot.usage.device(0).used_bytes == 0
    assert slot.procs() == []


def test_threads_of_one_process_leave_no_charge(slot: Slot) -> None:
    assert slot.tenant("threads", 8) == "0"
    assert slot.usage.device(0).used_bytes == 0


def test_processes_killed_at_random_leave_no_charge(world: World) -> None:
    slot = world.slot(cap=128 * MIB)
    kills = 120
    running = [slot.start(program("tenant"), "hammer", "100", str(seed)) for seed in range(4)]
    for turn in range(kills):
        time.sleep(0.01 + 0.0007 * (turn % 13))  # anywhere between start-up and full swing
        victim = running.pop(0)
        victim.kill()
        victim.communicate()
        for proc in slot.procs():
            if proc.pid == victim.pid:
                assert slot.reap(proc) in (0, 1)  # a sibling in need may have been faster
        running.append(slot.start(program("tenant"), "hammer", "100", str(turn)))
    for process in running:
        process.kill()
        process.communicate()
    slot.reap_all()
    assert slot.usage.device(0).used_bytes == 0
    assert slot.procs() == []
    assert slot.usage.device(0).peak_bytes <= 128 * MIB
    assert world.device()["alloc_bytes"] == 0


def test_next_program_gets_the_memory_of_the_last_one_without_the_agent(slot: Slot) -> None:
    for _ in range(3):
        assert slot.tenant("alloc", GIB - MIB) == str(SUCCESS)


def test_exec_releases_the_charge_of_the_first_program(slot: Slot) -> None:
    assert slot.tenant("exec", GIB - MIB) == str(SUCCESS)
    assert len(slot.procs()) == 1


def test_memory_of_a_living_sibling_is_not_released(slot: Slot) -> None:
    process = slot.start(program("tenant"), "hold", str(600 * MIB))
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    assert slot.tenant("alloc", 600 * MIB) == str(OUT_OF_MEMORY)
    assert slot.usage.device(0).used_bytes >= 600 * MIB
    process.kill()
    process.communicate()
    assert slot.tenant("alloc", 600 * MIB) == str(SUCCESS)


def test_forked_child_has_its_own_counters(slot: Slot) -> None:
    both, one, status = (int(word) for word in slot.tenant("fork", 5 * 2 * MIB).split())
    assert (both, one, status) == (20 * MIB, 10 * MIB, 0)


def test_child_that_frees_memory_of_its_parent_changes_no_counter(slot: Slot) -> None:
    assert slot.tenant("late-fork", 10 * MIB) == f"{10 * MIB} 0 0"


def test_destroyed_context_releases_its_memory(slot: Slot) -> None:
    assert slot.tenant("contexts") == f"{8 * MIB} 0 0"


def test_reset_releases_all_memory(slot: Slot) -> None:
    assert slot.tenant("reset") == f"{12 * MIB} 0"
    assert slot.world.device()["alloc_bytes"] == 0


def test_frees_in_a_stream_make_room_without_a_wait(slot: Slot) -> None:
    assert slot.tenant("reuse", 700 * MIB) == "0"
    assert slot.world.device()["alloc_peak_bytes"] <= GIB


@pytest.mark.aarch64
def test_block_of_virtual_memory_lives_until_its_last_reference_and_mapping(slot: Slot) -> None:
    assert slot.tenant("vmm").split("\n") == [
        f"created {4 * MIB}",
        f"released {4 * MIB}",
        f"unmapped {4 * MIB}",
        "gone 0",
    ]


CONTEXT = 414 * MIB  # what one takes of the simulated card


def test_every_context_is_charged_before_the_driver_makes_it(world: World) -> None:
    slot = world.slot(cap=GIB, context=CONTEXT)
    assert slot.tenant("many-contexts", 60) == f"2 {OUT_OF_MEMORY}"
    assert world.device()["used_peak_bytes"] == 2 * CONTEXT
    slot.reap_all()
    assert slot.usage.device(0).used_bytes == 0
    assert slot.usage.device(0).denied_count == 1


def test_contexts_of_many_processes_fit_exactly(world: World) -> None:
    slot = world.slot(cap=3 * CONTEXT + 4 * MIB, context=CONTEXT)
    with slot.start_holder(2 * MIB), slot.start_holder(2 * MIB):
        assert slot.tenant("many-contexts", 60) == f"1 {OUT_OF_MEMORY}"
        assert world.device()["used_peak_bytes"] <= 3 * CONTEXT + 4 * MIB


def test_context_that_ends_is_given_back_and_a_second_retain_costs_nothing(world: World) -> None:
    slot = world.slot(cap=2 * CONTEXT + 8 * MIB, context=CONTEXT)
    assert slot.tenant("contexts") == f"{CONTEXT + 8 * MIB} 0 0"


def test_slice_smaller_than_one_context_says_so_once(world: World) -> None:
    slot = world.slot(cap=100 * MIB, context=CONTEXT)
    process = slot.start(*slot.tenant_command("many-contexts", 1))
    out, err = process.communicate(timeout=60)
    assert out.strip() == f"0 {OUT_OF_MEMORY}"
    assert err.count("\n") == 1
    assert "414 MiB" in err
    assert "100 MiB" in err


@pytest.mark.aarch64
@pytest.mark.parametrize("way", ["module", "file", "library"])
def test_variables_of_a_module_are_charged_once_from_load_to_unload(slot: Slot, way: str) -> None:
    taken = 100 * MIB
    assert slot.tenant("module", taken, way) == f"{SUCCESS} {taken} {taken} 0"
    assert slot.world.device()["alloc_bytes"] == 0


@pytest.mark.aarch64
@pytest.mark.parametrize("way", ["module", "file", "library"])
def test_module_whose_variables_exceed_the_cap_is_not_loaded(slot: Slot, way: str) -> None:
    assert slot.tenant("module", 20 * GIB, way) == f"{OUT_OF_MEMORY} 0 0 0"
    assert slot.world.device()["alloc_peak_bytes"] == 0


def test_memory_of_a_killed_sibling_is_released_by_the_next_allocation(slot: Slot) -> None:
    """The memory is released without an agent, and although nobody has read the exit code of the dead process."""
    survivor = slot.start(*slot.tenant_command("again", 600 * MIB))
    assert survivor.stdin is not None
    assert survivor.stdout is not None
    assert survivor.stdout.readline() == "ready\n"

    def ask() -> str:
        assert survivor.stdin is not None
        assert survivor.stdout is not None
        survivor.stdin.write("\n")
        survivor.stdin.flush()
        return survivor.stdout.readline().strip()

    for _ in range(20):
        sibling = slot.start(*slot.tenant_command("hold", 600 * MIB))
        assert sibling.stdout is not None
        assert sibling.stdout.readline() == "ready\n"
        assert ask() == str(OUT_OF_MEMORY)
        sibling.kill()
        os.waitid(os.P_PID, sibling.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and stays a zombie
        assert ask() == str(SUCCESS)
        sibling.communicate()
    survivor.stdin.close()
    assert survivor.wait(timeout=60) == 0


def test_allocation_waits_for_the_residual_of_a_killed_sibling(world: World) -> None:
    """An allocation waits for the agent's next poll, which alone releases the residual; without an agent it does not wait."""
    slot = world.slot(cap=GIB)
    limits = slot.limits
    limits.set_residual(0, 600 * MIB)
    with slot.start_holder(64 * MIB):
        pass  # killed: the next process that is short of memory reaps it
    assert slot.tenant("alloc", 600 * MIB) == str(OUT_OF_MEMORY), "without an agent nobody waits"
    with slot.start_holder(64 * MIB):
        pass
    limits.beat(time.monotonic_ns() + 600_000_000_000)  # an agent that lives however slowly the tenant starts
    late = threading.Timer(0.15, limits.set_residual, (0, 0))
    late.start()
    assert slot.tenant("alloc", 980 * MIB) == str(SUCCESS)
    late.join()
