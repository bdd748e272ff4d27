"""Pool that holds back cards until they have left the fabric partitions of other tenants.

The tests run the fabric controller, which changes the partitions, and a fabric manager that can fail.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.daemons.world import World, until

from calabash_testing.fabric.ufm import SimulatedUfm

PORTS = ("506b4b0300a1b201", "506b4b0300a1b202")


@pytest.fixture
def ufm() -> Iterator[SimulatedUfm]:
    with SimulatedUfm() as found:
        yield found


@pytest.fixture
def fabric(make_world: Callable[..., World], ufm: SimulatedUfm) -> World:
    """Start a pool with two tenants and one card, which has two InfiniBand ports.

    The pool holds the card back until it has left the fabric partitions of other tenants.
    """
    return _up(make_world, ufm, "hold = true\n")


@pytest.fixture
def kept(make_world: Callable[..., World], ufm: SimulatedUfm) -> World:
    """Start a pool as ``fabric`` does that also runs the fabric controller itself."""
    return _up(make_world, ufm, "hold = true\nrun = true\n")


def _up(make_world: Callable[..., World], ufm: SimulatedUfm, settings: str) -> World:
    world = make_world("1xA100-40GB")
    (world.home / "pool.toml").write_text(f"[fabric]\n{settings}")
    world.up()
    card = world.devices()[0]["uuid"]
    (world.home / "fabric.toml").write_text(
        f'[infiniband]\ndriver = "ufm"\nurl = "{ufm.url}"\n[[card]]\ndevice = "{card}"\ninfiniband = {json.dumps(PORTS)}\n'
    )
    for tenant in ("red", "blue"):
        world.client.put(f"/v1/tenants/{tenant}", {})
    return world


def calabash(world: World, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "calabash.cli.main", *words],
        env=os.environ | {"CALABASH_HOME": str(world.home)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout


def keeper_pid(world: World) -> int:
    """Return the process ID of the fabric controller that the pool started last; 0 if it does not run."""
    started = re.findall(r'the keeper of fabrics is started" pid=([0-9]+)', (world.home / "pool.log").read_text())
    return int(started[-1]) if started and lives(int(started[-1])) else 0


def lives(pid: int) -> bool:
    """Return True if the process runs; False also for a zombie."""
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except OSError:
        return False


def members(ufm: SimulatedUfm) -> dict[str, set[str]]:
    with ufm.pkeys.lock:
        return {ufm.pkeys.names[number]: set(found) for number, found in ufm.pkeys.members.items() if number != 0x7FFF}


def shown(world: World) -> dict[str, Any]:
    (row,) = json.loads(calabash(world, "net", "fabric", "list", "-o", "json"))["items"]
    return dict(row)


def explanation(world: World) -> str:
    """Return the explanation of the waiting request, "" if none waits."""
    for allocation in world.allocations():
        if allocation["state"] == "pending":
            return str(world.client.get(f"/v1/allocations/{allocation['id']}/why")["explanation"])
    return ""


def test_a_card_goes_from_tenant_to_tenant_by_way_of_nobodys_partition_through_kills(
    kept: World, ufm: SimulatedUfm
) -> None:
    fabric = kept
    program, _ = fabric.running(tenant="red", wait_s=60)
    until(lambda: members(ufm) == {"cb-red": set(PORTS)}, what="the card to join")
    until(lambda: shown(fabric)["state"] == "member", what="the pool to hear of it")
    ufm.pkeys.faults.lose = True  # the manager confirms changes and does nothing
    assert program.finish() == 0
    until(lambda: not fabric.allocations(), what="the slice to be gone")
    waiting = fabric.run("cat", tenant="blue", wait_s=60)
    until(lambda: "another tenant's on its fabric: red" in explanation(fabric), what="the reason why blue waits")
    until(lambda: shown(fabric)["state"] == "leaving", what="the pool to hear that it does not leave")
    assert "accepted an order without effect" in shown(fabric)["message"]
    assert members(ufm) == {"cb-red": set(PORTS)}
    ufm.pkeys.faults.lose = False
    until(lambda: fabric.allocation_of(waiting), what="blue to have the card")
    until(lambda: members(ufm) == {"cb-blue": set(PORTS)}, what="the card to change hands")
    first = until(lambda: keeper_pid(fabric), what="the pool's program")
    os.kill(first, signal.SIGKILL)
    second = until(lambda: (pid := keeper_pid(fabric)) != first and pid, what="it to be started again")
    fabric.kill()
    until(lambda: not lives(second), what="it to end with its pool")
    assert members(ufm) == {"cb-blue": set(PORTS)}
    fabric.up()
    assert waiting.finish() == 0
    until(lambda: not members(ufm).get("cb-blue"), what="the card to leave by the next pool's program")


def test_without_the_program_that_clears_cards_nothing_is_granted_and_it_is_said(fabric: World) -> None:
    waiting = fabric.run("cat", tenant="red", wait_s=60)
    until(lambda: "controller has told nothing yet" in explanation(fabric), what="the reason why red waits")
    assert "no controller has reported fabrics" in _stderr(fabric, "net", "fabric", "list")
    calabash(fabric, "net", "fabric", "run", "--once")
    until(lambda: fabric.allocation_of(waiting), what="red to have the card")
    assert shown(fabric)["state"] == "clear"


def _stderr(world: World, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "calabash.cli.main", *words],
        env=os.environ | {"CALABASH_HOME": str(world.home)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stderr
