"""Membership of processes: a slice is held as long as any process of its program lives, and release ends all of them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.daemons.world import World, until

from calabash.adapters.host.processes import start_time

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="control groups are made by root")


def _pids(world: World, allocation: str) -> list[int]:
    return next((a["pids"] for a in world.allocations() if a["id"] == allocation), [])


def test_a_daemon_without_descriptors_holds_its_slice_until_it_is_released(world: World) -> None:
    assert world.client.get("/v1/status")["membership"] == "kernel"
    daemonise = "setsid sh -c 'exec sleep 1000' <&- >&- 2>&- & sleep 0.2"
    program, allocation = world.running("sh", "-c", daemonise, memory_mib=1024, cores=10)
    name = allocation["id"]
    until(program.dead)
    (left,) = until(lambda: [pid for pid in _pids(world, name) if pid != program.pid], what="the daemon to be found")
    assert Path(f"/proc/{left}/comm").read_text() == "sleep\n"
    card = world.devices()[allocation["slices"][0]["device_index"]]
    assert card["allocations"] == [name]
    world.client.delete(f"/v1/allocations/{name}?force=1")
    until(lambda: not world.allocations(), what="the slice to come back")
    assert start_time(left) == 0
    assert world.slots() == []


def test_a_program_starts_others_while_no_pool_runs(make_world: Callable[..., World], hold: str) -> None:
    world = make_world()
    world.up()
    program, allocation = world.running(
        "sh", "-c", f"echo ready; read line; exec {hold} 700 100", memory_mib=2048, cores=10
    )
    until(lambda: program.says("ready"), what="the program to run")
    world.kill()
    os.write(program.stdin, b"\n")
    until(lambda: program.says("held 700"), what="memory to be held while the pool is down")
    world.up()
    assert [a["id"] for a in world.allocations()] == [allocation["id"]]
    until(lambda: world.allocations()[0]["slices"][0]["memory_used_mib"] >= 700, what="its memory to be counted")
    program.kill()
    until(lambda: not world.allocations(), what="the slice to come back")


@pytest.mark.parametrize("size", ["0", "100", "1T"])
def test_a_program_that_spoils_its_page_is_ended_and_told(world: World, size: str) -> None:
    script = f"truncate -s {size} $CALABASH_SLOT/usage; exec sleep 1000"
    program = world.run("sh", "-c", script, memory_mib=1024, cores=10)
    until(program.dead, what="it to be ended")
    assert program.code == -signal.SIGKILL
    until(lambda: not world.allocations(), what="its slice to come back")
    (event,) = world.events("hostile")
    ended = next(a for a in world.allocations(ended=True) if a["id"] == event["allocation"])
    assert ended["reason"] == "hostile"
    assert "bytes, not" in ended["explanation"]


def test_what_ignores_sigterm_is_ended_with_all_its_children(world: World) -> None:
    ignoring = "trap '' TERM; (trap '' TERM; while :; do sleep 1; done) & while :; do sleep 1; done"
    program, allocation = world.running("sh", "-c", ignoring, memory_mib=1024, cores=10)
    until(lambda: len(_pids(world, allocation["id"])) >= 3, what="children")
    pids = _pids(world, allocation["id"])
    world.client.delete(f"/v1/allocations/{allocation['id']}?force=1")
    until(program.dead, what="the grace to be over")
    until(lambda: not world.allocations(), what="its slice to come back")
    assert not any(start_time(pid) for pid in pids)


@pytest.mark.parametrize("mode", ["exclusive", "timeslice"])
def test_modes_without_amounts_see_only_their_card_even_without_the_variable(
    world: World, hold: str, mode: str
) -> None:
    program, allocation = world.running("env", "-u", "CUDA_VISIBLE_DEVICES", hold, "100", "100", mode=mode, gpus=1)
    until(lambda: program.says("held 100"), what="memory to be held")
    card = allocation["slices"][0]["device_index"]
    until(lambda: world.devices()[card]["memory_used_mib"] >= 100, what="its own card to hold it")
    slot = world.slot_path(allocation["id"])
    assert f"{slot}" in Path(f"/proc/{program.pid}/environ").read_text()
    program.finish()
    until(lambda: not world.allocations(), what="the card to come back")
