"""Recovery of a killed pool: processor time of the start, number of database queries, and waiting time of clients."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from tests.daemons.world import World, until

from calabash.adapters.host.children import end_urgency, start_module
from calabash.cli.pool import lifecycle
from calabash.model.errors import CalabashError, Reason
from calabash.node.arbiter.supervisor import BACKOFF_MAX_S, ArbiterProcess

ALLOCATIONS = 40


def _run(world: World, count: int) -> bool:
    return len([a for a in world.allocations() if a["state"] == "running"]) == count


def _cpu_s(pid: int) -> float:
    """Return the processor time of a process and of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def test_killed_pool_restores_allocations_at_little_more_than_the_cost_of_an_empty_start(
    make_world: Callable[..., World],
) -> None:
    world = make_world("4xA100-40GB")
    world.up()
    costs = {}
    for count in (0, ALLOCATIONS):
        for _ in range(count):
            world.run(memory_mib=1024, cores=5, wait_s=60)
        until(partial(_run, world, count), what="all to run")
        held = sorted(a["id"] for a in world.allocations())
        found = []
        for _ in range(2):
            world.kill()
            pid = world.up()["pid"]
            found.append(_cpu_s(pid))
            assert sorted(a["id"] for a in world.allocations()) == held
        costs[count] = min(found)
    assert costs[ALLOCATIONS] < 2 * costs[0], costs
    log = (world.home / "pool.log").read_text()
    assert log.count("probed a device") == 1, "what a context costs is tried out once in a boot"


def test_a_pool_writes_the_stacks_of_its_threads_into_its_log_and_goes_on(make_world: Callable[..., World]) -> None:
    world = make_world("1xT4")
    pid = world.up()["pid"]
    os.kill(pid, signal.SIGUSR2)
    log = world.home / "pool.log"
    until(lambda: "Current thread 0x" in log.read_text(), what="the stacks")
    assert "in _run" in log.read_text()
    assert world.client.get("/v1/status")["pid"] == pid


def test_dead_arbiter_is_replaced_each_time_without_growing_delay(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "alloc").mkdir(parents=True)
    arbiter = ArbiterProcess(home)
    arbiter.start()
    try:
        seen = set()
        for _ in range(8):
            pid = until(lambda: arbiter.pid if arbiter.pid not in seen else 0, what="another arbiter")
            seen.add(pid)
            os.kill(pid, signal.SIGKILL)
        until(lambda: arbiter.pid and arbiter.pid not in seen, what="the last one to be replaced")
        assert BACKOFF_MAX_S <= 0.5
    finally:
        arbiter.stop()
    assert arbiter.pid == 0


def _starting(tmp_path: Path, script: str) -> tuple[subprocess.Popen[bytes], Path]:
    log = tmp_path / "pool.log"
    with log.open("ab") as sink:
        return subprocess.Popen([sys.executable, "-c", script], stdout=sink, stderr=sink), log


def test_up_waits_while_steps_are_reported_and_gives_up_without_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CALABASH_HOME", str(tmp_path))
    monkeypatch.setattr(lifecycle, "NO_PROGRESS_S", 2.0)
    reports = """import time
for n in range(12):
    print(f'level=info event=starting step="part {n}"', flush=True)
    time.sleep(0.4)
"""
    process, log = _starting(tmp_path, reports + "print('error [disk_full]: no room')\nraise SystemExit(1)")
    with pytest.raises(CalabashError) as ended:
        lifecycle._wait_until_ready(process, log, 0)
    assert (ended.value.reason, ended.value.message) == (Reason.DISK_FULL, "no room"), "it was waited for to its end"
    start = log.stat().st_size
    hung, log = _starting(tmp_path, "import time\nprint('event=starting step=journal', flush=True)\ntime.sleep(600)")
    with pytest.raises(CalabashError) as late:
        lifecycle._wait_until_ready(hung, log, start)
    hung.wait(timeout=60)
    assert late.value.reason is Reason.TIMEOUT
    assert "no progress for 2s, last step: journal" in late.value.message


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may raise a priority")
def test_urgent_module_starts_before_others_and_returns_to_the_usual_priority() -> None:
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    child = start_module("calabash.node.arbiter.main", "--home", "/nonexistent", urgent=True, new_session=True)
    try:
        until(lambda: os.getpriority(os.PRIO_PROCESS, child.pid) == min(usual, -15), what="its priority to be raised")
    finally:
        child.kill()
        child.wait()
    os.environ["CALABASH_USUAL_PRIORITY"] = str(usual)
    end_urgency()
    assert os.getpriority(os.PRIO_PROCESS, 0) == usual
    assert "CALABASH_USUAL_PRIORITY" not in os.environ
