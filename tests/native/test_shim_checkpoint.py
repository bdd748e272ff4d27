"""Tests of checkpoints on a slice: of its own processes only, whose memory is released and charged again within the cap."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.native.shim_world import GIB, MIB, OUT_OF_MEMORY, Slot, World
from tests.native.sim_cuda_programs import ask, program
from tests.native.simnode import until

OK, WRONG_STATE, NOT_PERMITTED, NOT_SUPPORTED = 0, 401, 800, 801
RUNNING, LOCKED, CHECKPOINTED = -1, -2, -3
CONTEXT = 414 * MIB
BASE = CONTEXT + 512  # of a target, beside its memory: a context and a variable of its module
NONE, MOVING, PARKED = 0, 1, 2


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World.create(tmp_path)


@pytest.fixture
def slot(world: World) -> Slot:
    return world.slot(cap=4 * GIB, context=CONTEXT)


@contextlib.contextmanager
def target(slot: Slot, mib: int, *wrapped: str) -> Iterator[subprocess.Popen[str]]:
    process = slot.start(*wrapped, program("sim_cuda_checkpoint"), "target", str(mib))
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def act(slot: Slot, pid: object, letters: str) -> list[int]:
    return [int(word) for word in slot.run(program("sim_cuda_checkpoint"), "act", str(pid), letters).split()]


def used(slot: Slot) -> int:
    """Return the bytes charged to the slice, by its counter and by its processes."""
    slot.reap_dead()
    total = slot.usage.device(0).used_bytes
    assert total == sum(proc.used_bytes[0] for proc in slot.procs())
    return total


def test_memory_of_a_checkpointed_process_is_free_for_siblings_and_charged_again_at_restore(slot: Slot) -> None:
    with target(slot, 2048) as process:
        assert used(slot) == BASE + 2048 * MIB
        assert act(slot, process.pid, "LCS") == [OK, OK, CHECKPOINTED]
        assert used(slot) == 0
        assert slot.world.device()["used_bytes"] == 0
        assert slot.tenant("alloc", 3 * GIB) == str(OK)
        slot.reap_dead()
        assert act(slot, process.pid, "RUS") == [OK, OK, RUNNING]
        assert used(slot) == BASE + 2048 * MIB
        assert ask(process) == "used"
    slot.reap_all()
    assert slot.usage.device(0).used_bytes == 0


def test_without_room_in_the_slice_the_restore_is_refused_and_the_process_stays_checkpointed(slot: Slot) -> None:
    with target(slot, 2048) as process:
        assert act(slot, process.pid, "LC") == [OK, OK]
        with slot.start_holder(3 * GIB):
            assert act(slot, process.pid, "RSU") == [OUT_OF_MEMORY, CHECKPOINTED, WRONG_STATE]
            assert used(slot) == CONTEXT + 3 * GIB
            assert slot.world.device()["used_peak_bytes"] <= 4 * GIB
        assert act(slot, process.pid, "RU") == [OK, OK]
        assert ask(process) == "used"
        assert used(slot) == BASE + 2048 * MIB


def test_when_the_driver_refuses_the_restore_nothing_stays_charged(slot: Slot) -> None:
    with target(slot, 2048) as process:
        assert act(slot, process.pid, "LC") == [OK, OK]
        full = slot.world.slot("other", cap=0)
        with full.start_holder(38 * GIB):
            assert act(slot, process.pid, "RS") == [OUT_OF_MEMORY, CHECKPOINTED]
            assert used(slot) == 0
        assert act(slot, process.pid, "XS") == [NOT_SUPPORTED, CHECKPOINTED], "another card is none of the slice's"
        assert act(slot, process.pid, "RU") == [OK, OK]
        assert used(slot) == BASE + 2048 * MIB


def test_process_of_another_slice_or_of_none_is_left_alone(slot: Slot) -> None:
    other = slot.world.slot("other", cap=GIB)
    with target(other, 64) as process:
        command = slot.start(program("sim_cuda_checkpoint"), "act", str(process.pid), "LCRUST")
        out, err = command.communicate(timeout=60)
        assert [int(word) for word in out.split()] == [NOT_PERMITTED] * 6
        assert f"process {process.pid} is not a process of this slice" in err
        assert act(slot, 1, "LCRUST") == [NOT_PERMITTED] * 6
        assert act(other, process.pid, "S") == [RUNNING]
        assert ask(process) == "used"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may checkpoint a process in a user namespace of its own")
def test_process_in_a_namespace_below_is_found_by_the_pid_that_it_has_here(slot: Slot) -> None:
    wrapped = ["unshare", "-rpf", "--mount-proc"]
    if subprocess.run([*wrapped, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("this user may not make namespaces")
    with target(slot, 64, *wrapped) as outer:
        inner = Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()[0]
        assert act(slot, inner, "LCS") == [OK, OK, CHECKPOINTED]
        assert used(slot) == 0
        assert act(slot, inner, "RU") == [OK, OK]
        assert ask(outer) == "used"
        assert used(slot) == BASE + 64 * MIB


def test_process_that_dies_while_it_is_checkpointed_leaves_nothing_charged(slot: Slot) -> None:
    with target(slot, 512) as process:
        assert act(slot, process.pid, "LC") == [OK, OK]
    slot.reap_all()
    assert slot.usage.device(0).used_bytes == 0
    assert slot.tenant("alloc", 3 * GIB) == str(OK), "its slot is another's now, and the note in it is gone"


def test_memory_that_the_process_asks_for_meanwhile_is_not_counted_twice(slot: Slot) -> None:
    with target(slot, 512) as process:
        assert act(slot, process.pid, "L") == [OK]
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("\n")  # it reserves one MiB more and waits in the driver
        process.stdin.flush()
        until(lambda: slot.usage.device(0).used_bytes == BASE + 514 * MIB, "it reserves what it asks for")
        assert act(slot, process.pid, "C") == [OK]
        assert used(slot) == 2 * MIB
        assert act(slot, process.pid, "RU") == [OK, OK]
        assert process.stdout.readline() == "used\n"
        assert used(slot) == BASE + 512 * MIB


def test_who_died_amid_the_move_is_taken_over_from(slot: Slot) -> None:
    with target(slot, 512) as process, slot.start_holder(MIB) as mover:
        procs = {proc.pid: proc.index for proc in slot.procs()}
        usage = slot.usage  # stays mapped while it is written
        page = usage._page.proc[procs[process.pid]]
        assert act(slot, process.pid, "LC") == [OK, OK]
        page.parker, page.parked = procs[mover.pid] + 1, MOVING  # as if it had noted all and charged nothing yet
        mover.kill()
        mover.wait()
        assert act(slot, process.pid, "RU") == [OK, OK]
        assert (page.parker, page.parked) == (0, NONE)
        assert used(slot) == BASE + 512 * MIB
        assert act(slot, process.pid, "LC") == [OK, OK]
        assert (page.parker, page.parked) == (0, PARKED)
        usage.device(0)


def test_while_another_moves_it_a_process_is_not_moved(slot: Slot) -> None:
    with target(slot, 64) as process, slot.start_holder(MIB) as mover:
        procs = {proc.pid: proc.index for proc in slot.procs()}
        usage = slot.usage
        page = usage._page.proc[procs[process.pid]]
        page.parker = procs[mover.pid] + 1
        assert act(slot, process.pid, "LCSU") == [OK, 600, LOCKED, OK]
        assert used(slot) == BASE + 64 * MIB + CONTEXT + 2 * MIB


def test_processes_that_come_and_go_under_a_storm_of_allocations_never_exceed_the_cap(slot: Slot) -> None:
    storm = slot.start(*slot.tenant_command("hammer", 3, 7, 1))
    with target(slot, 1024) as process:
        moved = threading.Thread(target=lambda: [act(slot, process.pid, "LCRU") for _ in range(8)])
        moved.start()
        moved.join()
        storm.communicate(timeout=60)
        assert ask(process) == "used"
        slot.reap_dead()
        assert used(slot) == BASE + 1024 * MIB
        assert slot.world.device()["used_peak_bytes"] <= 4 * GIB
