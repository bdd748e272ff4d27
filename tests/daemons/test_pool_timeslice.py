"""Mode time-slicing on a real pool: slots, memory limits, and time slices of the driver across the death of pools."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
from tests.daemons.world import NATIVE, Program, World, until

from calabash.adapters.gpu import sim
from calabash.adapters.gpu.library import simulated_environment
from calabash.adapters.gpu.nvidia.timeslice_intervals import Intervals
from calabash.model.device import DeviceUuid, Interval
from calabash.model.errors import CalabashError, Reason
from calabash.platform.home.directory import SETTINGS_FILE

TURNS: dict[str, Any] = {"mode": "timeslice"}
GIB = 1024


def class_of(world: World, device: int = 0) -> Interval | None:
    return Intervals(simulated_environment(world.state_file)).interval(DeviceUuid(world.devices()[device]["uuid"]))


def set_class(world: World, number: int) -> None:
    """Set the time-slice class of the card with the driver's tool, without the pool's knowledge."""
    subprocess.run(
        [NATIVE / "simgpu" / "nvidia-smi", "compute-policy", "-i", "0", f"--set-timeslice={number}"],
        env=os.environ | simulated_environment(world.state_file),
        capture_output=True,
        check=True,
        timeout=60,
    )


def set_card(world: World, **wanted: Any) -> dict[str, Any]:
    detail: dict[str, Any] = world.client.post("/v1/devices/0/settings", wanted)
    return detail["device"]  # type: ignore[no-any-return]


def refused(world: World, **body: Any) -> CalabashError:
    with pytest.raises(CalabashError) as caught:
        world.client.post("/v1/allocations", {**TURNS, "command": ["x"], **body})
    return caught.value


def held_mib(program: Program) -> int:
    until(lambda: program.says("held "), what="the program to have taken what it gets")
    return int(program.output.split()[1])


@pytest.fixture
def pool(make_world: Callable[..., World]) -> World:
    """Return a pool with one card, whose settings a test may write before it is started."""
    return make_world("1xA100-40GB")


def test_a_card_has_as_many_tenants_as_its_operator_says_restarts_included(pool: World) -> None:
    (pool.home / SETTINGS_FILE).write_text("[devices]\nreplicas = 3\n")
    pool.up()
    assert pool.devices()[0]["replicas"] == 3
    tenants = [pool.running(**TURNS)[0] for _ in range(3)]
    assert "3 of 3 replicas are used" in refused(pool).message
    waiting = pool.run(wait_s=60, **TURNS)
    assert set_card(pool, replicas=4)["replicas"] == 4
    until(lambda: pool.allocation_of(waiting), what="who waited to have the place that has come")
    with pytest.raises(CalabashError, match="4 tenants share device 0 by time slices, more than replicas 3") as caught:
        set_card(pool, replicas=0)
    assert caught.value.reason is Reason.CONFLICT
    pool.kill()
    pool.up()
    assert pool.devices()[0]["replicas"] == 4
    assert "4 of 4 replicas" in refused(pool).message
    tenants[0].finish()
    until(lambda: len(pool.allocations()) == 3, what="one to have left")
    assert set_card(pool, replicas=0)["replicas"] == 3
    assert "3 of 3 replicas" in refused(pool).message


def test_who_asks_for_memory_is_held_to_it_and_who_does_not_is_not(pool: World, hold: str) -> None:
    pool.up()
    capped, allocation = pool.running(hold, "16384", "256", memory_mib=8 * GIB, **TURNS)
    held = held_mib(capped)
    assert 7 * GIB < held <= 8 * GIB
    assert pool.devices()[0]["memory_allocated_mib"] == 8 * GIB
    open_end, other = pool.running(hold, "16384", "256", **TURNS)
    assert held_mib(open_end) == 16 * GIB
    assert refused(pool, memory_mib=36 * GIB).reason is Reason.NO_MEMORY
    assert allocation["slices"][0]["memory_mib"] == 8 * GIB
    assert other["slices"][0]["memory_mib"] == 0
    granted = pool.client.post("/v1/allocations", {**TURNS, "memory_mib": 4 * GIB, "command": ["x"]})
    assert any("a limit and not guaranteed" in warning for warning in granted["warnings"])


@pytest.mark.skipif(os.geteuid() != 0, reason="the driver lets root alone set the length of turns")
def test_time_slice_is_the_operators_while_it_is_used_and_then_restored(pool: World) -> None:
    pool.up()
    set_class(pool, 2)
    assert set_card(pool, interval="long")["interval"] == "long"
    assert class_of(pool) is Interval.MEDIUM
    first, _ = pool.running(**TURNS)
    second, _ = pool.running(**TURNS)
    assert class_of(pool) is Interval.LONG
    first.finish()
    until(lambda: len(pool.allocations()) == 1, what="one to have left")
    assert class_of(pool) is Interval.LONG
    set_card(pool, interval="short")
    until(lambda: class_of(pool) is Interval.SHORT, what="the new length to be set")
    set_card(pool, interval="auto")
    until(lambda: class_of(pool) is Interval.MEDIUM, what="it to be as it was")
    set_card(pool, interval="long")
    until(lambda: class_of(pool) is Interval.LONG, what="the length to be set again")
    second.finish()
    until(lambda: class_of(pool) is Interval.MEDIUM, what="it to be put back")
    pool.running(memory_mib=1000)
    assert class_of(pool) is Interval.MEDIUM


@pytest.mark.skipif(os.geteuid() != 0, reason="the driver lets root alone set the length of turns")
def test_time_slice_is_restored_after_any_death(pool: World) -> None:
    (pool.home / SETTINGS_FILE).write_text('[devices]\ninterval = "short"\n')
    pool.up()
    tenant, _ = pool.running(**TURNS)
    assert class_of(pool) is Interval.SHORT
    pool.kill()
    assert class_of_file(pool) == 1
    pool.up()
    until(lambda: pool.allocation_of(tenant), what="the tenant to be known again")
    assert class_of(pool) is Interval.SHORT
    pool.kill()
    tenant.kill()
    until(tenant.dead)
    assert class_of_file(pool) == 1
    pool.up()
    until(lambda: class_of(pool) is Interval.DEFAULT, what="it to be put back")
    _, allocation = pool.running(**TURNS)
    assert class_of(pool) is Interval.SHORT
    pool.client.delete(f"/v1/allocations/{allocation['id']}?force=1")
    pool.kill(signal.SIGTERM)
    assert class_of_file(pool) == 0


def class_of_file(world: World) -> int:
    """Return the time-slice class of the card from the state file of the simulated node."""
    return sim.show_node(sim.find_node(world.home, "lab")).devices[0].timeslice


def test_what_makes_no_sense_is_refused(pool: World) -> None:
    pool.up()
    for body in (
        {"replicas": 33}, {"replicas": -1}, {"replicas": "2"}, {"interval": "tiny"}, {"spill": "much"}, {"more": 1},
    ):  # fmt: skip
        with pytest.raises(CalabashError) as caught:
            set_card(pool, **body)
        assert caught.value.reason is Reason.BAD_REQUEST, body
    assert (pool.devices()[0]["replicas"], pool.devices()[0]["interval"]) == (8, "")
