"""Programs that end while no pool runs: the end recorder has the times; unknown times are marked as estimated."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from tests.daemons.world import Program, World, until

from calabash.adapters.host.processes import Process, identify, send_signal
from calabash.node.metering.end_file import DIRECTORY

AWAY_S = 3.0
ERROR_S = 1.0


def _recorders(home: Path) -> list[Process]:
    """Return the living end recorders of a pool."""
    found = []
    for pid in (int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit()):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if (
            b"calabash.node.metering.end_recorder" in words
            and str(home).encode() in words
            and (process := identify(pid))
        ):
            found.append(process)
    return found


def _metered(world: World, allocation: str) -> tuple[float, float, float]:
    """Return begin and end of an allocation's metered time, and its uncertain seconds."""
    with closing(sqlite3.connect(world.home / "pool.db")) as journal:
        query = "SELECT MIN(from_s), MAX(to_s), SUM(uncertain_s) FROM usage WHERE allocation = ?"
        begin_s, end_s, uncertain_s = journal.execute(query, (allocation,)).fetchone()
    return begin_s, end_s, uncertain_s


def _uncertain_hours(world: World) -> float:
    """Return the uncertain hours of the only tenant in the last hour."""
    now_s = time.time()
    (sums,) = world.client.get(f"/v1/usage?by=tenant&from={now_s - 3600}&to={now_s}")["items"]
    found: float = sums["uncertain_hours"]
    return found


def _end(program: Program) -> float:
    """End a program; return the time of its end."""
    program.kill()
    until(program.dead)
    return time.time()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_program_that_ends_while_its_pool_is_down_is_charged_up_to_its_end(
    make_world: Callable[..., World], how: signal.Signals
) -> None:
    world = make_world()
    world.up()
    programs = [world.running(memory_mib=1024, cores=10) for _ in range(3)]
    until(lambda: _recorders(world.home), what="the end recorder to run")
    world.kill(how)
    ends = {}
    for program, allocation in programs[:2]:
        time.sleep(AWAY_S)
        ends[allocation["id"]] = _end(program)
    time.sleep(AWAY_S)
    world.up()
    for name, ended_at in ends.items():
        _, to_s, uncertain_s = _metered(world, name)
        assert abs(to_s - ended_at) <= ERROR_S
        assert uncertain_s == 0
    assert _uncertain_hours(world) == 0
    until(lambda: len(_recorders(world.home)) == 1, what="the recorder of the pool before to end")
    last, allocation = programs[2]
    ended_at = _end(last)
    until(lambda: not world.allocations(), what="the last slice to come back")
    assert abs(_metered(world, allocation["id"])[1] - ended_at) <= ERROR_S


def test_end_that_nobody_recorded_is_estimated_between_the_last_look_and_the_restart(
    make_world: Callable[..., World],
) -> None:
    world = make_world()
    world.up()
    program, allocation = world.running("sleep", "1000", memory_mib=1024, cores=50)
    (recorder,) = until(lambda: _recorders(world.home), what="the end recorder to run")
    assert world.daemon is not None
    world.daemon.send_signal(signal.SIGSTOP)  # otherwise the pool starts the next recorder
    stopped_at = time.time()
    assert send_signal(recorder, signal.SIGKILL)
    world.kill()
    time.sleep(AWAY_S)
    ended_at = _end(program)
    time.sleep(AWAY_S)
    world.up()
    up_at = time.time()
    _, to_s, uncertain_s = _metered(world, allocation["id"])
    assert stopped_at - ERROR_S <= to_s <= stopped_at, "it is charged up to the last moment at which it was seen"
    assert ended_at <= to_s + uncertain_s <= up_at, "the end lies within the bounds"
    assert _uncertain_hours(world) == pytest.approx(uncertain_s / 3600 / 2)


def test_recorder_that_died_is_started_again_and_ends_with_an_empty_pool(make_world: Callable[..., World]) -> None:
    world = make_world("1xT4")
    world.up()
    (first,) = until(lambda: _recorders(world.home), what="the end recorder to run")
    assert send_signal(first, signal.SIGKILL)
    until(lambda: _recorders(world.home) not in ([], [first]), what="another recorder")
    world.kill(signal.SIGTERM)
    until(lambda: not _recorders(world.home), what="the recorder of an empty pool to end")
    assert not list((world.home / DIRECTORY).glob("*"))


def test_end_is_kept_over_pools_that_are_killed_before_they_write_it(make_world: Callable[..., World]) -> None:
    world = make_world()
    world.up()
    program, allocation = world.running(memory_mib=1024, cores=10)
    until(lambda: _recorders(world.home), what="the end recorder to run")
    world.kill()
    time.sleep(1.0)
    ended_at = _end(program)
    for delay_s in (0.0, 0.1, 0.3, 0.6):
        world.daemon = None
        _start_and_kill(world, delay_s)
    world.up()
    until(lambda: not world.allocations(), what="the slice to come back")
    _, to_s, uncertain_s = _metered(world, allocation["id"])
    assert abs(to_s - ended_at) <= ERROR_S
    assert uncertain_s == 0


def _start_and_kill(world: World, delay_s: float) -> None:
    """Start the pool and kill it while it starts."""
    with (world.home / "pool.log").open("ab") as log:
        daemon = subprocess.Popen(world.command(), env=world.environment, stdout=log, stderr=log)
    time.sleep(delay_s)
    daemon.kill()
    daemon.wait()
