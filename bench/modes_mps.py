"""Mode mps on a pool: cost of starts and mode changes, accuracy of shares, recovery from faults."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from bench._lab import NATIVE
from bench._report import ROOT, Report

SHARES = {50: 4096, 30: 2048, 20: 1024}
POINTS = 2.0
TOLD_S = 1.0
BACK_S = 3.0
POLLED = "set by poll intervals of the pool"  # why these goals are in seconds
ILLEGAL_ADDRESS = "700"
HANG_S = 60.0
BUILD = ROOT / "build" / "bench"


def _client() -> Path:
    """Compile the program that follows commands, against the simulated driver; return its path."""
    target = BUILD / "mps_client"
    BUILD.mkdir(parents=True, exist_ok=True)
    include = next((ROOT / ".venv" / "lib").glob("python3*/site-packages/nvidia/cu13/include"))
    source = ROOT / "tests" / "native" / "sim_mps_client.c"
    command = ["gcc", "-std=gnu11", "-O1", "-pthread", "-isystem", str(include), str(source)]
    subprocess.run([*command, str(NATIVE / "simgpu" / "libcuda.so.1"), "-lm", "-o", str(target)], check=True)
    return target


class Tenant:
    """A ``calabash run`` whose program follows commands."""

    def __init__(self, pool: Pool, percent: int, memory_mib: int, mode: str = "mps") -> None:
        words = [
            "run",
            "--wait",
            "10s",
            "--mode",
            mode,
            "--cores",
            str(percent),
            "--memory",
            f"{memory_mib}MiB",
            "--",
            str(pool.client),
        ]
        self.begun = time.monotonic()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "calabash.cli.main", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=pool.environment,
        )
        self.sms = int(self.receive()[2])
        self.ready_s = time.monotonic() - self.begun

    def send(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def receive(self) -> list[str]:
        assert self.process.stdout is not None
        return self.process.stdout.readline().split()

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


class Pool:
    """A pool on a simulated card."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.client = _client()
        own = {k: v for k, v in os.environ.items() if not k.startswith(("CALABASH_", "LD_"))}
        self.environment = own | {"CALABASH_HOME": str(home)}

    def calabash(self, *words: str) -> str:
        command = [sys.executable, "-m", "calabash.cli.main", *words]
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, check=True).stdout

    def events(self, kind: str) -> list[dict[str, Any]]:
        from tests.api_client import PathClient  # noqa: PLC0415 - only here

        items = PathClient(self.home).get("/v1/events?limit=1000")["items"]
        return [item for item in items if item["kind"] == kind]

    def has_events(self, kind: str, count: int) -> bool:
        return len(self.events(kind)) >= count


@contextmanager
def _pool() -> Iterator[Pool]:
    with tempfile.TemporaryDirectory(prefix="calabash-bench-") as home:
        pool = Pool(Path(home) / "home")
        pool.calabash("sim", "create", "lab", "--gpus", "1xA100-40GB")
        pool.calabash("up", "--sim", "lab")
        try:
            yield pool
        finally:
            pool.calabash("down", "--force")


def _until(condition: Callable[[], object]) -> float:
    """Return the seconds until the condition is true."""
    begun = time.monotonic()
    while not condition():
        if time.monotonic() - begun > HANG_S:
            raise RuntimeError(f"not within {HANG_S:g} s")
        time.sleep(0.01)
    return time.monotonic() - begun


def _starts(report: Report, pool: Pool) -> None:
    rounds = 3 if report.quick else 10
    first, more, other = [], [], []
    for _ in range(rounds):
        begin = Tenant(pool, 50, 4096)
        beside = Tenant(pool, 30, 4096)
        first.append(begin.ready_s)
        more.append(beside.ready_s)
        for tenant in (begin, beside):
            tenant.end()
        _until(lambda: "mps" not in pool.calabash("ps"))
        switched = Tenant(pool, 50, 4096, mode="vgpu")
        other.append(switched.ready_s)
        switched.end()
        _until(lambda: "vgpu" not in pool.calabash("ps"))
    report.add("mps: first start on a card, daemon included", statistics.median(first) * 1000, "ms")
    report.add("mps: start beside others", statistics.median(more) * 1000, "ms")
    report.add("mps: start in mode vgpu right after it", statistics.median(other) * 1000, "ms")


def _shares(report: Report, pool: Pool) -> None:
    seconds = 3 if report.quick else 10
    tenants = {percent: Tenant(pool, percent, memory) for percent, memory in SHARES.items()}
    for tenant in tenants.values():
        tenant.send(f"for {seconds} 2000000")
    done = {percent: int(tenant.receive()[0]) for percent, tenant in tenants.items()}
    worst = max(abs(100 * count / sum(done.values()) - percent) for percent, count in done.items())
    report.add("mps: worst error of shares 50/30/20", worst, "points", at_most=POINTS, detail="of the kernels done")
    held = 0
    for percent, memory in SHARES.items():
        tenants[percent].send(f"alloc {memory}")
        held += tenants[percent].receive() == ["2"]
    report.add("mps: memory limits held", held, "tenants", at_least=len(SHARES), detail="one more than its limit each")
    for tenant in tenants.values():
        tenant.end()


def _faults(report: Report, pool: Pool) -> None:
    told, back = [], []
    for number in range(1, 3 if report.quick else 6):
        culprit, victim = Tenant(pool, 30, 2048), Tenant(pool, 50, 4096)
        culprit.send("fault")
        assert culprit.receive() == [ILLEGAL_ADDRESS]
        begun = time.monotonic()
        _until(partial(pool.has_events, "mps_fault", 2 * number))
        told.append(time.monotonic() - begun)
        _until(partial(pool.has_events, "mps_back", number))
        back.append(time.monotonic() - begun)
        for tenant in (culprit, victim):
            tenant.end()
        _until(lambda: "mps" not in pool.calabash("ps"))
    report.add(
        "mps: an illegal access is told, worst",
        max(told),
        "s",
        at_most=TOLD_S,
        detail=f"victims do not leave; {POLLED}",
    )
    report.add("mps: service is back, worst", max(back), "s", at_most=BACK_S, detail=POLLED)


def _deaths(report: Report, pool: Pool) -> None:
    before = len(pool.events("mps_back"))
    tenant = Tenant(pool, 30, 2048)
    os.kill(int((pool.home / "mps/0/pipe/nvidia-cuda-mps-control.pid").read_text()), signal.SIGKILL)
    took = _until(lambda: len(pool.events("mps_back")) > before)
    report.add("mps: a killed daemon is back", took, "s", at_most=BACK_S, detail=POLLED)
    tenant.end()


def measure_mps(report: Report) -> None:
    """Measure on one simulated A100-40GB."""
    with _pool() as pool:
        _starts(report, pool)
        _shares(report, pool)
        _faults(report, pool)
        _deaths(report, pool)
