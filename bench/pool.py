"""Reaction times of a pool: until slices are free and granted again, and delay of a user by another user's waiting requests.

A pool with two simulated cards. Programs are killed and requesters end; the clock runs until the pool shows what follows.
Then another user has thousands of requests wait, each on a connection of its own, and the time of a grant is compared with
the time of a grant before. That part needs root, which becomes the other user.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.api_client import PathClient

from bench._report import Report, run
from calabash.adapters.gpu import sim
from calabash.adapters.gpu.library import simulated_library_dir

NODE = "lab"
FREE_MS = 1_000.0
GRANTED_MS = 1_500.0
REPORTED_MS = 2_000.0
WAITING = 4_000
DELAY_RATIO = 10.0
OTHER_USER = 4_711
WITHIN_S = 120.0
SMALL: dict[str, Any] = {
    "memory_mib": 100,
    "cores": 1,
    "run_time_s": 1,
}  # may start before a reservation
SETTINGS = f"[user]\nwaiting = {WAITING}\nconnections = {WAITING + 100}\nrequests_per_second = 400\n"
UNMANAGED = "import ctypes, sys; d = ctypes.CDLL('libcuda.so.1'); c = ctypes.c_void_p(); d.cuInit(0); \
d.cuDevicePrimaryCtxRetain(ctypes.byref(c), 0); print(flush=True); sys.stdin.read()"


class Pool:
    """A pool in a directory of its own that other users may pass through."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.client = PathClient(home)
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith(("CALABASH_", "LD_"))}
        self.environment["CALABASH_HOME"] = str(home)

    def start(self, **body: Any) -> subprocess.Popen[bytes]:
        """Start a program that ends with its input, on a slice that is granted or waited for."""
        words = [sys.executable, "-m", "calabash.cli.main", "run", "--wait", "60s"]
        for name, value in body.items():
            words += [f"--{name}", str(value)]
        return subprocess.Popen(
            [*words, "--", "cat"], env=self.environment, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
        )

    def states(self) -> list[str]:
        return sorted(a["state"] for a in self.client.get("/v1/allocations")["items"])

    def grant_ms(self) -> float:
        """Return the time of one grant, in milliseconds. The slice is given back."""
        began = time.monotonic()
        granted = self.client.post("/v1/allocations", SMALL)
        took_ms = (time.monotonic() - began) * 1000
        self.client.delete(f"/v1/allocations/{granted['id']}")
        return took_ms


def waited_ms(condition: Callable[[], Any], since_s: float | None = None) -> float:
    """Return the time until a condition holds, in milliseconds.

    Raises:
        TimeoutError: it did not hold within ``WITHIN_S``.
    """
    began = time.monotonic() if since_s is None else since_s
    while not condition():
        if time.monotonic() > began + WITHIN_S:
            raise TimeoutError(f"not within {WITHIN_S:g} s")
        time.sleep(0.005)
    return (time.monotonic() - began) * 1000


@contextmanager
def started() -> Iterator[Pool]:
    """Run a pool; yield it when it answers."""
    home = Path(tempfile.mkdtemp(prefix="calabash-pool-"))
    home.chmod(0o755)
    sim.create_node(home, NODE, "2xA100-40GB", 1)
    (home / "pool.toml").write_text(SETTINGS)
    pool = Pool(home)
    words = [sys.executable, "-m", "calabash.pool.daemon", "--home", str(home), "--sim", NODE]
    with (home / "pool.log").open("wb") as log:
        daemon = subprocess.Popen(words, env=pool.environment, stdout=log, stderr=log)
    try:
        waited_ms((home / "pool.sock").exists)
        yield pool
    finally:
        daemon.terminate()
        daemon.wait(timeout=WITHIN_S)
        shutil.rmtree(home, ignore_errors=True)


def _end(program: subprocess.Popen[bytes]) -> None:
    program.kill()
    program.communicate()


def _killed_ms(pool: Pool) -> float:
    """Return the time from the SIGKILL of a program until its slice is free."""
    program = pool.start(memory="1GiB", cores=10)
    waited_ms(lambda: pool.states() == ["running"])
    time.sleep(0.1)  # by now the process executes the program
    began = time.monotonic()
    _end(program)
    return waited_ms(lambda: not pool.states(), began)


def _given_on_ms(pool: Pool) -> float:
    """Return the time from the end of a program until the request that waits for its cards runs."""
    holder = pool.start(mode="exclusive", gpus=2)
    waited_ms(lambda: pool.states() == ["running"])
    waiting = pool.start(memory="1GiB", cores=10)
    waited_ms(lambda: pool.states() == ["pending", "running"])
    began = time.monotonic()
    _end(holder)
    took_ms = waited_ms(lambda: pool.states() == ["running"], began)
    _end(waiting)
    waited_ms(lambda: not pool.states())
    return took_ms


def _revoked_ms(pool: Pool) -> float:
    """Return the time from the end of a requester until its untaken grant is revoked."""
    requester = os.fork()
    if requester == 0:
        pool.client.post("/v1/allocations", SMALL)
        os._exit(0)
    os.waitpid(requester, 0)
    return waited_ms(lambda: not pool.states())


def _reported_ms(pool: Pool) -> float:
    """Return the time from the first context of an unmanaged process until the pool reports it."""
    environment = pool.environment | {
        "LD_LIBRARY_PATH": str(simulated_library_dir()),
        "CALABASH_SIM": str(pool.home / "sim" / NODE / sim.STATE_FILE),
    }
    command = [sys.executable, "-c", UNMANAGED]
    process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()

    def reported() -> bool:
        return any(device["strangers"] for device in pool.client.get("/v1/devices")["items"])

    took_ms = waited_ms(reported)
    _end(process)
    waited_ms(lambda: not reported())
    return took_ms


def measure_times(report: Report, pool: Pool) -> None:
    """Measure the times after an end, and until an unmanaged process is reported."""
    rounds = 5 if report.quick else 20
    for name, measured, goal in (
        ("slice free after its program was killed", _killed_ms, FREE_MS),
        ("waiting request runs after the slice was free", _given_on_ms, GRANTED_MS),
        ("untaken grant revoked after its requester ended", _revoked_ms, FREE_MS),
        ("unmanaged process reported", _reported_ms, REPORTED_MS),
    ):
        times = [measured(pool) for _ in range(rounds)]
        detail = f"worst of {rounds}, median {statistics.median(times):.0f} ms"
        report.add(name, max(times), "ms", at_most=goal, detail=detail)


def _wait_in_crowd(pool: Pool, count: int) -> None:
    """Make ``count`` requests that wait, as another user, until this process is killed."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, count + 256), hard))
    os.setgroups([])
    os.setgid(OTHER_USER)
    os.setuid(OTHER_USER)
    body = json.dumps({"mode": "exclusive", "wait_s": 3600}).encode()
    head = f"POST /v1/allocations HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    kept = []
    for _ in range(count):
        kept.append(socket.socket(socket.AF_UNIX))
        kept[-1].connect(str(pool.home / "pool.sock"))
        kept[-1].sendall(head + body)
    signal.pause()


def measure_crowd(report: Report, pool: Pool) -> None:
    """Measure grants to one user while requests of another wait."""
    if os.geteuid() != 0:
        report.fact("waiting requests of another user", "left out: needs root, which becomes the other user")
        return
    count, grants = (1_000, 50) if report.quick else (WAITING, 200)
    # The crowd gets nothing, and the grants that are measured end before the slices of these two programs do.
    holders = [pool.start(mode="exclusive", time="1h"), pool.start(memory="1GiB", cores=1, time="1h")]
    waited_ms(lambda: pool.states() == ["running"] * 2)
    before = sorted(pool.grant_ms() for _ in range(grants))
    crowd = os.fork()
    if crowd == 0:
        try:
            _wait_in_crowd(pool, count)
        finally:
            os._exit(1)
    try:
        waited_ms(lambda: pool.client.get("/v1/status")["pending"] >= count)
        during = sorted(pool.grant_ms() for _ in range(grants))
    finally:
        os.kill(crowd, signal.SIGKILL)
        os.waitpid(crowd, 0)
    place = int(0.99 * grants) - 1
    name = f"grant while {count:,} requests of another user wait, p99"
    report.add_ratio(name, during[place], before[place], "ms", of="before", at_most=DELAY_RATIO)
    waited_ms(lambda: pool.client.get("/v1/status")["pending"] == 0)
    for holder in holders:
        _end(holder)


def measure(report: Report) -> None:
    """Run both parts on one pool."""
    with started() as pool:
        measure_times(report, pool)
        measure_crowd(report, pool)


if __name__ == "__main__":
    run("pool", "Answers of a pool", measure)
