"""SIGKILL of the pool at random points of grant and release: no allocation is lost, and no share is granted twice."""

from __future__ import annotations

import fcntl
import os
import random
import signal
import sqlite3
import sys
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

from tests.daemons.terminal import TENANT
from tests.daemons.world import SIM, Program, World, until
from tests.stand_ins import NothingListed

from calabash.adapters.clock import SystemClock
from calabash.adapters.gpu.sim import find_node, show_node
from calabash.adapters.store import open_store
from calabash.model.allocation import AllocationRecord, AllocationState
from calabash.model.device import DeviceUuid, NodeName
from calabash.model.request import AllocationId, GpuRequest, ModeName, Placement, Slice
from calabash.model.units import MIB
from calabash.node.allocations.table import Allocations
from calabash.node.membership.lease import LeaseMembership
from calabash.node.slots import content as slots_content
from calabash.node.slots.files import FileSlots

JOURNAL_KILLS = 120
DAEMON_KILLS = 6
CARD = DeviceUuid("GPU-1")


def _record(name: str) -> AllocationRecord:
    part = Slice(device=CARD, memory_mib=1, core_percent=1)
    return AllocationRecord(
        id=AllocationId(name),
        state=AllocationState.GRANTED,
        request=GpuRequest(memory_mib=1, core_percent=1),
        placement=Placement(node=NodeName("n"), mode=ModeName("vgpu"), slices=(part,)),
        client_pid=os.getpid(),
        client_start_time=1,  # no process: a grant that is not taken is revoked at once
    )


def _grant_and_release(home: Path, url: str, round_: int, ready: int) -> None:
    """Grant and release allocations without end, as the pool does, until killed. A program uses every second one."""
    store = open_store(url)
    membership = LeaseMembership(lambda allocation: home / allocation / "lease")
    allocations = Allocations(
        store=store, slots=FileSlots(home), membership=membership, clock=SystemClock(), occupancy=NothingListed()
    )
    allocations.recover()
    os.write(ready, b"!")
    number = 0
    while True:
        number += 1
        name = AllocationId(f"r{round_}-{number}")
        spec = slots_content.SlotSpec(
            allocation=name, devices=(slots_content.SlotDevice(uuid=CARD, memory_limit_bytes=MIB),)
        )
        allocations.hold(_record(name))
        allocations.grant(spec)
        taken = -1
        if number % 2:
            taken = os.open(home / name / "lease", os.O_RDONLY)
            fcntl.flock(taken, fcntl.LOCK_SH)
            allocations.sweep()
            os.close(taken)
        allocations.sweep()


def _entered(path: Path) -> set[str]:
    """Return the held allocations in the journal, read with sqlite3: opening the store takes ten times as long."""
    with closing(sqlite3.connect(path)) as journal:
        rows = journal.execute("SELECT id FROM allocations WHERE state <> ?", (AllocationState.RELEASED.value,))
        return {name for (name,) in rows}


def test_process_killed_at_any_instruction_leaves_an_agreeing_journal(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/pool.db"
    open_store(url).close()
    slots = tmp_path / "alloc"
    rng = random.Random(7)
    seen_states: set[tuple[bool, bool]] = set()
    for round_ in range(JOURNAL_KILLS):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                _grant_and_release(slots, url, round_, writing)
            finally:
                os._exit(99)
        assert os.read(reading, 1) == b"!"
        time.sleep(rng.uniform(0.0, 0.05))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        os.close(reading)
        os.close(writing)
        assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL, "the book keeper ended by itself"
        if slots.is_dir():
            names = {p.name for p in slots.iterdir() if not p.name.startswith(".")}
            entered = _entered(tmp_path / "pool.db")
            seen_states.add((bool(entered - names), bool(entered & names)))
            assert not names - entered, "a slot that the journal does not know"
    store = open_store(url)
    membership = LeaseMembership(lambda allocation: slots / allocation / "lease")
    allocations = Allocations(
        store=store, slots=FileSlots(slots), membership=membership, clock=SystemClock(), occupancy=NothingListed()
    )
    allocations.recover()
    assert allocations.records() == []
    assert list(slots.iterdir()) == []
    ended = store.allocations(ended=True, limit=100_000)
    assert len(ended) > JOURNAL_KILLS // 4, "hardly anything was granted before the kills"
    assert all(r.state is AllocationState.RELEASED and r.ended_at > 0 for r in ended)
    store.close()
    assert len(seen_states) > 1, "the kills hit only one kind of moment"


def _require_agreement(world: World) -> None:
    """Check that the pool, the slots, the journal and the cards agree."""
    shown = world.allocations()
    held = {a["id"]: a for a in shown if a["state"] != "pending"}
    assert set(world.slots()) >= set(held)
    for device in world.devices():
        parts = [s for a in held.values() for s in a["slices"] if s["device"] == device["uuid"]]
        assert sum(s["memory_mib"] for s in parts) <= device["memory_mib"]
        assert sum(s["core_percent"] for s in parts) <= 100
        assert device["memory_allocated_mib"] == sum(s["memory_mib"] for s in parts)


def test_a_pool_killed_again_and_again_under_load_keeps_everybody_running(
    make_world: Callable[..., World], hold: str
) -> None:
    world = make_world()
    rng = random.Random(11)
    world.up()
    steady, first = world.running(hold, "500", "100", memory_mib=2048, cores=10)
    until(lambda: steady.says("held 500"))
    limits = (world.slot_path(first["id"]) / "limits").stat().st_ino
    for round_ in range(DAEMON_KILLS):
        crowd = [world.run(memory_mib=1000 + 100 * n, cores=5, wait_s=1) for n in range(6)]
        time.sleep(rng.uniform(0.0, 0.15))
        for program in crowd[: round_ % 3]:
            program.kill()
        time.sleep(rng.uniform(0.0, 0.05))
        world.kill()
        world.up()
        again = until(lambda: world.allocation_of(steady), what="the steady program to be known")
        assert again["id"] == first["id"]
        assert again["slices"][0]["memory_mib"] == 2048
        assert (world.slot_path(first["id"]) / "limits").stat().st_ino == limits
        _require_agreement(world)
        # Requesters that became programs before the kill still run and are still known; the others got an error.
        for program in crowd:
            if program.alive() and _is_program(program):
                assert until(partial(_known, world, program), what="it to be known")
        for program in crowd:
            program.kill()
            until(program.dead)
        until(lambda: len(world.allocations()) == 1, what="only the steady program to be left")
        assert world.slots() == [first["id"]]
    assert steady.alive()
    steady.finish()
    until(lambda: not world.allocations() and not world.slots(), what="the last slice to come back")
    ended = world.allocations(ended=True)
    assert all(a["state"] == "released" and a["ended_at"] for a in ended)


def _known(world: World, program: Program) -> bool:
    return program.dead() or world.allocation_of(program) is not None


def _is_program(program: Program) -> bool:
    return Path(f"/proc/{program.pid}/exe").resolve().name == "cat"


def test_a_power_cut_of_pool_and_programs_leaves_an_empty_pool(make_world: Callable[..., World], hold: str) -> None:
    world = make_world()
    world.up()
    programs = [world.run(hold, "300", "100", memory_mib=1024, cores=10) for _ in range(4)]
    for program in programs:
        until(partial(program.says, "held"), what="all to hold memory")
    world.kill()
    for program in programs:
        program.kill()
        until(program.dead)
    assert len(world.slots()) == 4
    world.up()
    assert world.allocations() == []
    assert world.slots() == []
    assert all(d["memory_allocated_mib"] == 0 and d["memory_used_mib"] == 0 for d in world.devices())
    assert [a["state"] for a in world.allocations(ended=True)] == ["released"] * 4


def test_a_slot_that_the_journal_lost_blocks_its_card_until_its_program_ends(make_world: Callable[..., World]) -> None:
    world = make_world("1xA100-40GB")
    world.up()
    program, allocation = world.running(memory_mib=1024, cores=10)
    world.kill()
    for name in ("pool.db", "pool.db-wal", "pool.db-shm"):
        (world.home / name).unlink(missing_ok=True)
    world.up()
    assert world.slots() == [allocation["id"]]
    waiting = world.run(memory_mib=1024, cores=10, wait_s=30)
    until(lambda: any(a["state"] == "pending" for a in world.allocations()), what="it to wait for the stranger")
    program.finish()
    until(lambda: world.allocation_of(waiting), what="it to get the card")
    assert allocation["id"] not in world.slots()


def test_a_pool_that_starts_while_no_card_can_be_tried_out_holds_slices_to_their_size(
    make_world: Callable[..., World],
) -> None:
    world = make_world("1xA100-40GB")
    world.up()
    world.kill()
    world.inject("0", "alloc-fail", "100%")
    world.up()
    world.inject("0", "recover")
    program = world.run(sys.executable, str(TENANT), "--seconds", "0.1", memory_mib=2048, cores=10)
    until(program.dead, what="the program to end")
    assert program.says("memory_held_bytes")
    (card,) = show_node(find_node(world.home, SIM)).devices
    assert 1800 * MIB < card.used_peak_bytes <= 2048 * MIB


def test_what_is_held_of_a_card_that_is_lost_when_the_pool_starts_counts_against_its_queue(
    make_world: Callable[..., World], hold: str
) -> None:
    world = make_world("1xT4")
    world.up()
    world.client.put("/v1/tenants/vision", {"limit": 1.0})
    program, _ = world.running(hold, "500", "100", memory_mib=4096, cores=60, tenant="vision")
    until(lambda: program.says("held 500"), what="it to hold its memory before the card is lost")
    (before,) = world.devices()
    world.kill()
    world.inject("0", "lost")
    world.up()
    (lost,) = world.devices()
    assert lost["health"] == "lost"
    assert (lost["memory_mib"], lost["model"]) == (before["memory_mib"], before["model"])

    def allocated() -> float:
        """Return the allocated devices as of the last decision; there may have been none yet."""
        return float(world.client.get("/v1/quota?tenant=vision")["items"][0]["allocated"])

    until(lambda: allocated() == 0.6, what="what is held to count against its queue")
    assert program.alive()


def test_who_waits_when_the_pool_goes_down_is_told_so(make_world: Callable[..., World]) -> None:
    world = make_world("1xT4")
    world.up()
    world.running(mode="exclusive")
    waiting = world.run(mode="exclusive", wait_s=60)
    until(lambda: [a for a in world.allocations() if a["state"] == "pending"], what="it to wait")
    world.kill(signal.SIGTERM)
    until(waiting.dead, what="it to be answered")
    assert waiting.says("refused pool_down")
