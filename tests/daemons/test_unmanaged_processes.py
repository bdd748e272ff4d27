"""Unmanaged processes on a card, and programs that hold more than they were given, beside programs within their limits."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from bench._lab import KERNELS, program
from tests.daemons.world import World, until

from calabash.adapters.gpu.library import simulated_library_dir
from calabash.adapters.gpu.sim import NodeFile, show_node
from calabash.adapters.host.cgroups.groups import find_hierarchy, group_of
from calabash.model.errors import CalabashError

MakeWorld = Callable[..., World]
PLAIN = ("env", "-u", "LD_PRELOAD", "-u", "CALABASH_SLOT", "-u", "CUDA_VISIBLE_DEVICES")
kernel_membership = pytest.mark.skipif(os.geteuid() != 0, reason="control groups are made by root")


@contextmanager
def _unmanaged_process(world: World, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program on the simulated cards without an allocation of the pool."""
    environment = {
        **world.environment,
        "LD_LIBRARY_PATH": str(simulated_library_dir()),
        "CALABASH_SIM": str(world.state_file),
    }
    process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"held")
        yield process
    finally:
        process.kill()
        process.communicate()


def _ask(world: World, **body: Any) -> str:
    """Return the reason of a refusal; "" if the request is granted (and released)."""
    try:
        granted = world.client.post("/v1/allocations", {"command": ["true"], **body})
    except CalabashError as error:
        return str(error.reason)
    world.client.delete(f"/v1/allocations/{granted['id']}?force=1")
    until(lambda: not world.allocations(), what="the slice to come back")
    return ""


def test_unmanaged_process_is_found_and_its_memory_is_not_granted(make_world: MakeWorld, hold: str) -> None:
    world = make_world("A100-40GB")
    world.up()
    with _unmanaged_process(world, hold, "20000", "1000") as unmanaged:
        (event,) = until(lambda: world.events("stranger"), what="the unmanaged process to be told of")
        assert f"hold (pid {unmanaged.pid}, user " in event["message"]
        (card,) = world.devices()
        (listed,) = card["strangers"]
        assert (listed["pid"], listed["uid"]) == (unmanaged.pid, os.geteuid())
        assert 20_000 <= listed["memory_mib"] < 21_500
        assert card["memory_free_mib"] < 41_000 - 20_000
        assert _ask(world, mode="exclusive") != ""
        assert _ask(world, memory_mib=30_000, cores=10) == "no_memory"
        assert _ask(world, memory_mib=10_000, cores=10) == ""
        waiting = world.run("cat", mode="exclusive", wait_s=60)
        pending = until(lambda: [a for a in world.allocations() if a["state"] == "pending"], what="it to wait")
        why = world.client.get(f"/v1/allocations/{pending[0]['id']}/why")
        assert f"pid {unmanaged.pid}" in str(why)
    until(lambda: world.events("stranger_gone"), what="its end to be told of")
    until(lambda: world.allocation_of(waiting), what="the card to be granted alone")
    assert world.devices()[0]["strangers"] == []


def test_policy_drain_stops_new_allocations_while_an_unmanaged_process_is_there(
    make_world: MakeWorld, hold: str
) -> None:
    world = make_world("A100-40GB", options=("--unmanaged", "drain"))
    world.up()
    with _unmanaged_process(world, hold, "100", "100"):
        until(lambda: world.devices()[0]["strangers"], what="the unmanaged process to be found")
        assert _ask(world, memory_mib=1000, cores=10) == "unhealthy"
    until(lambda: not world.devices()[0]["strangers"], what="its end to be seen")
    assert _ask(world, memory_mib=1000, cores=10) == ""


def test_policy_kill_ends_only_unmanaged_processes(make_world: MakeWorld, hold: str) -> None:
    world = make_world("A100-40GB", options=("--unmanaged", "kill"))
    world.up()
    honest, _ = world.running(hold, "700", "100", memory_mib=2048, cores=10)
    until(lambda: honest.says("held 700"))
    with _unmanaged_process(world, hold, "100", "100") as unmanaged:
        until(lambda: unmanaged.poll() is not None, what="the unmanaged process to be killed")
    until(lambda: world.events("stranger_gone"))
    assert honest.alive()


@kernel_membership
def test_program_on_a_card_outside_of_its_allocation_is_reported_as_unmanaged(world: World, hold: str) -> None:
    owner, whole = world.running("cat", mode="exclusive")
    card = whole["slices"][0]["device_index"]
    assert card == 0
    intruder, allocation = world.running(*PLAIN, hold, "100", "100", memory_mib=1024, cores=10)
    until(lambda: intruder.says("held 100"))
    (event,) = until(lambda: world.events("stranger"), what="the intruder to be told of")
    assert event["allocation"] == allocation["id"]
    assert event["device"] == whole["slices"][0]["device"]
    assert owner.alive()


@kernel_membership
def test_an_allocation_that_holds_more_than_it_was_given_is_ended(world: World, hold: str) -> None:
    honest, _ = world.running(hold, "900", "100", memory_mib=1536, cores=10)
    until(lambda: honest.says("held 900"))
    greedy, allocation = world.running(*PLAIN, hold, "8000", "1000", memory_mib=1024, cores=10)
    until(lambda: greedy.says("held 8000") or not greedy.alive())
    until(greedy.dead, what="it to be ended")
    (event,) = world.events("over_use")
    assert event["allocation"] == allocation["id"]
    assert "it was given 1024 MiB" in event["message"]
    until(lambda: allocation["id"] not in [a["id"] for a in world.allocations()], what="its slice to come back")
    (ended,) = [a for a in world.allocations(ended=True) if a["id"] == allocation["id"]]
    assert ended["reason"] == "over_use"
    assert honest.alive()


@kernel_membership
def test_a_program_without_the_library_is_stopped_while_it_owes_gpu_time(world: World) -> None:
    load = (str(program("gpuload")), "--kernels", str(KERNELS), "--kernel-us", "1000", "--seconds", "60")
    greedy, allocation = world.running(*PLAIN, *load, memory_mib=2048, cores=20)
    until(lambda: greedy.says("ready"))
    until(lambda: world.events("under_reported"), what="its silence to be told of")
    (event,) = world.events("under_reported")
    assert event["allocation"] == allocation["id"]
    node = NodeFile(name="lab", state=world.state_file)

    def busy_ns() -> int:
        return sum(d.busy_ns for p in show_node(node).processes if p.pid == greedy.pid for d in p.devices)

    until(lambda: _is_stopped(greedy.pid), what="it to be stopped")
    before = busy_ns()
    until(lambda: busy_ns() > before, what="it to go on when it has paid")
    assert greedy.alive()


def _is_stopped(pid: int) -> bool:
    """Return True if the control group of a process is frozen."""
    hierarchy, name = find_hierarchy(), group_of(pid)
    assert hierarchy is not None
    assert name is not None
    events = hierarchy.directory / name.removeprefix(hierarchy.top).lstrip("/") / "cgroup.events"
    return "frozen 1" in events.read_text()
