"""Cost of a pool with many slices: while idle, when all are listed, and while many requests arrive.

A pool on a simulated node of 16 cards. Its processor time is taken while it holds nothing, and again while 800 slices are held
by programs that do nothing. 200 requests that wait are then added, and the 1,000 entries are listed. Shares are processor time
of the daemon and of the arbiter over elapsed time; other programs of the machine do not change them much. A part of the share
at 800 slices is that of the 16 cards, which are read whether anything is held or not; it is measured too. Times of answers have
goals in milliseconds, for a person waits for them; beside them stands the processor time of the daemon, or the time of a bare
interpreter.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.api_client import PathClient
from tests.daemons.processor import processor_s
from tests.daemons.world import World, until

from bench._reference import process_start_s
from bench._report import Report, run

CALABASH = str(Path(sys.executable).with_name("calabash"))
CARDS = 16
GPUS, SMALL = f"{CARDS}xA100-40GB", "2xA100-40GB"
SLICES, WAITING = 800, 200
SLICE: dict[str, Any] = {"memory_mib": 700, "cores": 2, "mode": "vgpu", "policy": "burst"}
EMPTY_PERCENT, IDLE_PERCENT = 0.5, 2.0
LIST_MS, PS_MS, STATUS_MS = 100.0, 300.0, 100.0
STATUS_PERIOD_S = 0.02
SETTLED_S = (
    12.0  # the pool puts its journal in order some seconds after its start; what is idle is looked at less and less
)
WITHIN_S = 300.0


@contextmanager
def started(gpus: str) -> Iterator[World]:
    """Run a pool; yield it when it answers."""
    home = Path(tempfile.mkdtemp(prefix="calabash-bench-"))
    home.chmod(0o755)
    world = World(home / "home", gpus)
    try:
        world.up()
        yield world
    finally:
        world.close()
        shutil.rmtree(home, ignore_errors=True)


def _processes(world: World) -> dict[str, int]:
    """Return the processes of the pool by name: the daemon and its arbiter."""
    assert world.daemon is not None
    found = {"daemon": world.daemon.pid}
    for task in Path(f"/proc/{world.daemon.pid}/task").iterdir():
        for pid in map(int, (task / "children").read_text().split()):
            if b"calabash.node.arbiter.main" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found["arbiter"] = pid
    return found


def _switches(pid: int) -> int:
    """Return how often the threads of a process have waited so far."""
    lines = [(task / "status").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
    return sum(int(text.partition("\nvoluntary_ctxt_switches:")[2].split()[0]) for text in lines)


def measure_idle(report: Report, world: World, what: str, *, at_most: float | None, seconds: float) -> None:
    """Measure the share of a core that daemon and arbiter use while nothing happens."""
    time.sleep(7.0 if report.quick else SETTLED_S)
    pids = _processes(world)
    before = {name: (processor_s(pid), _switches(pid)) for name, pid in pids.items()}
    began = time.monotonic()
    time.sleep(seconds)
    took_s = time.monotonic() - began
    for name, pid in pids.items():
        used_s, waits = processor_s(pid) - before[name][0], _switches(pid) - before[name][1]
        detail = f"{waits / took_s:.0f} wake-ups a second, {len(os.listdir(f'/proc/{pid}/task'))} threads"
        report.add(f"{name}, {what}", 100 * used_s / took_s, "% core", at_most=at_most, detail=detail)


@contextmanager
def held(world: World, count: int) -> Iterator[None]:
    """Run ``count`` programs that sleep, each on a slice of its own."""
    pids: list[int] = []
    try:
        for _ in range(count):
            pids.append(_program(world.home))
            if len(pids) % 8 == 0:
                until(lambda: _running(world) >= len(pids) - 8, within_s=WITHIN_S, what="programs to run")
        until(lambda: _running(world) == count, within_s=WITHIN_S, what="all programs to run")
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for pid in pids:
            os.waitpid(pid, 0)


def _running(world: World) -> int:
    return int(world.client.get("/v1/status", timeout_s=60)["allocations"])


def _program(home: Path) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            PathClient(home).post(
                "/v1/allocations", {"command": ["sleep"], "enter": True, "wait_s": 120, **SLICE}, timeout_s=180
            )
            os.closerange(3, 4096)
            os.execvp("sleep", ["sleep", "3600"])
        finally:
            os._exit(1)
    return pid


def _answers(call: Callable[[], object], pid: int, rounds: int) -> tuple[list[float], list[float]]:
    """Return the times and the daemon's processor time of some calls, in ms, after one that warms up."""
    call()
    took, used = [], []
    for _ in range(rounds):
        began, before = time.monotonic(), processor_s(pid)
        call()
        took.append(1e3 * (time.monotonic() - began))
        used.append(1e3 * (processor_s(pid) - before))
    return took, used


def measure_list(report: Report, world: World, rounds: int) -> None:
    """Measure the time of all pages of a listing, and of `calabash ps`."""
    assert world.daemon is not None
    pid = world.daemon.pid
    count = len(world.client.rows("/v1/allocations"))
    report.fact("entries listed", str(count))
    took, used = _answers(lambda: world.client.rows("/v1/allocations"), pid, rounds)
    detail = f"worst {max(took):.0f} ms, processor time of the daemon {statistics.median(used):.0f} ms"
    report.add(f"GET /v1/allocations, {count:,} entries", statistics.median(took), "ms", at_most=LIST_MS, detail=detail)
    words, environment = (CALABASH, "ps"), world.environment | {"CALABASH_HOME": str(world.home)}
    took, used = _answers(lambda: process_start_s(words, environment), pid, rounds)
    bare_ms = 1e3 * statistics.median(process_start_s() for _ in range(5))
    detail = f"worst {max(took):.0f} ms, bare interpreter {bare_ms:.0f} ms"
    report.add(f"calabash ps, {count:,} entries", statistics.median(took), "ms", at_most=PS_MS, detail=detail)


@contextmanager
def waiting(world: World, count: int) -> Iterator[None]:
    """Make ``count`` requests for all cards, all sent at once, which must wait."""
    body = json.dumps({"mode": "exclusive", "gpus": CARDS, "wait_s": 3600}).encode()
    head = f"POST /v1/allocations HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    kept: list[socket.socket] = []
    try:
        for _ in range(count):
            kept.append(socket.socket(socket.AF_UNIX))
            kept[-1].connect(str(world.home / "pool.sock"))
            kept[-1].sendall(head + body)
        yield
    finally:
        for connection in kept:
            connection.close()


def measure_burst(report: Report, world: World, rounds: int) -> None:
    """Measure `GET /v1/status` while requests that wait arrive, and list everything afterwards."""
    times: list[float] = []
    stop = threading.Event()

    def ask() -> None:
        client = PathClient(world.home)
        while not stop.wait(STATUS_PERIOD_S):
            began = time.monotonic()
            client.get("/v1/status", timeout_s=120)
            times.append(1e3 * (time.monotonic() - began))

    assert world.daemon is not None
    asking = threading.Thread(target=ask)
    asking.start()
    time.sleep(2.0)
    calm, before_s = sorted(times), processor_s(world.daemon.pid)
    times.clear()
    began = time.monotonic()
    with waiting(world, WAITING):
        client = PathClient(world.home)
        while client.get("/v1/status", timeout_s=120)["pending"] < WAITING:
            time.sleep(0.1)
        arrived_s, used_s = time.monotonic() - began, processor_s(world.daemon.pid) - before_s
        time.sleep(3.0)
        stop.set()
        asking.join()
        burst = sorted(times)
        detail = f"median {statistics.median(burst):.0f} ms, worst {burst[-1]:.0f} ms; before: p99 {_p99(calm):.0f} ms"
        report.add(f"status while {WAITING} requests arrive, p99", _p99(burst), "ms", at_most=STATUS_MS, detail=detail)
        report.add(
            f"until {WAITING} requests wait", 1e3 * used_s / WAITING, "ms each", detail=f"took {arrived_s:.1f} s"
        )
        measure_list(report, world, rounds)
        if not report.quick:
            measure_idle(report, world, f"{SLICES} slices, {WAITING} wait", at_most=None, seconds=10.0)


def _p99(ascending: list[float]) -> float:
    return ascending[min(len(ascending) - 1, int(0.99 * len(ascending)))]


def measure(report: Report) -> None:
    """Measure a small empty pool, then a large one: empty, full, with waiting requests."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    seconds = 4.0 if report.quick else 20.0
    with started(SMALL) as world:
        measure_idle(report, world, "empty, 2 cards", at_most=EMPTY_PERCENT, seconds=seconds)
    with started(GPUS) as world:
        if not report.quick:
            measure_idle(report, world, "empty, 16 cards", at_most=None, seconds=seconds)
        slices = 100 if report.quick else SLICES
        began, daemon = time.monotonic(), _processes(world)["daemon"]
        before_s = processor_s(daemon)
        with held(world, slices):
            each_ms = 1e3 * (processor_s(daemon) - before_s) / slices
            report.add(
                f"grant of one of {slices} slices", each_ms, "ms", detail=f"all {time.monotonic() - began:.0f} s"
            )
            measure_idle(report, world, f"{slices} idle slices", at_most=IDLE_PERCENT, seconds=seconds)
            measure_burst(report, world, 5 if report.quick else 15)


if __name__ == "__main__":
    run("pool_scale", "A pool with many slices", measure)
