"""Recovery of a killed pool and of its arbiter: from the SIGKILL until the successor answers, with 100 allocations.

Measured on an idle machine and under load.
"""

from __future__ import annotations

import fcntl
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.api_client import PathClient

from bench._report import Report, run
from calabash.adapters.gpu.sim import create_node
from calabash.adapters.host.children import start_module
from calabash.model.errors import CalabashError

ALLOCATIONS = 100
BUSY = 8
QUIET_S, BUSY_S, ARBITER_S = 2.0, 10.0, 1.0
WAIT_S = 60.0


class KilledPool:
    """A pool on a simulated node that is killed and started again, as ``calabash up`` starts it."""

    def __init__(self, home: Path) -> None:
        self.home = home
        create_node(home, "lab", "8xA100-40GB", 1)
        self.client = PathClient(home)
        self.daemon = self._started()
        self._holders: list[int] = []

    def _started(self) -> subprocess.Popen[bytes]:
        words = ("--home", str(self.home), "--sim", "lab", "--console", "off")
        with (self.home / "pool.log").open("ab") as log:
            module = "calabash.pool.daemon"
            daemon = start_module(module, *words, stdout=log, stderr=log, new_session=True, urgent=True)
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            try:
                if self.client.get("/v1/status", timeout_s=WAIT_S)["pid"] == daemon.pid:
                    return daemon
            except CalabashError:
                time.sleep(0.005)
        raise RuntimeError("the pool did not answer")

    def hold(self, count: int) -> None:
        """Start ``count`` processes that hold a slice each and do nothing."""
        for _ in range(count):
            pid = os.fork()
            if pid == 0:
                try:
                    _hold(self.client)
                finally:
                    os._exit(1)
            self._holders.append(pid)
        while len(self.client.get("/v1/allocations")["items"]) < count:
            time.sleep(0.05)

    def recovery_s(self) -> float:
        self.daemon.kill()
        self.daemon.wait()
        begun = time.monotonic()
        self.daemon = self._started()
        return time.monotonic() - begun

    def arbiter_s(self) -> float:
        """Return the seconds from the SIGKILL of the arbiter until another one runs."""
        before = self._arbiter()
        begun = time.monotonic()
        os.kill(before, signal.SIGKILL)
        while self._arbiter() in {0, before}:
            time.sleep(0.002)
        return time.monotonic() - begun

    def _arbiter(self) -> int:
        children = Path(f"/proc/{self.daemon.pid}/task").glob("*/children")
        for pid in (word for path in children for word in path.read_text().split()):
            try:
                words = Path(f"/proc/{pid}/cmdline").read_bytes()
                mapped = Path(f"/proc/{pid}/maps").read_bytes() if b"calabash.node.arbiter.main" in words else b""
            except OSError:
                continue
            if b"libcalabash-page" in mapped:
                return int(pid)
        return 0

    def close(self) -> None:
        for pid in self._holders:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        deadline = time.monotonic() + WAIT_S
        while self.client.get("/v1/allocations")["items"] and time.monotonic() < deadline:
            time.sleep(0.05)
        self.daemon.terminate()
        self.daemon.wait(timeout=WAIT_S)


def _hold(client: PathClient) -> None:
    """Take a slice and keep it until this process is killed."""
    wanted = {"command": ["hold"], "memory_mib": 1024, "cores": 5, "wait_s": WAIT_S, "enter": True}
    granted = client.post("/v1/allocations", wanted, timeout_s=2 * WAIT_S)
    if granted["lease"]:
        lease = os.open(granted["lease"], os.O_RDONLY)
        fcntl.flock(lease, fcntl.LOCK_SH)
        client.post(f"/v1/allocations/{granted['id']}/started", {"pid": os.getpid()})
    signal.pause()


@contextmanager
def _load(count: int) -> Iterator[None]:
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def measure(report: Report) -> None:
    """Measure all."""
    times = 2 if report.quick else 5
    with tempfile.TemporaryDirectory(prefix="calabash-recovery-") as directory:
        home = Path(directory) / "home"
        home.mkdir()
        pool = KilledPool(home)
        report.fact("priority", "raised until allocations are adopted" if os.geteuid() == 0 else "usual: not root")
        try:
            pool.hold(ALLOCATIONS)
            for name, count, goal_s in (("quiet", 0, QUIET_S), (f"beside {BUSY} busy processes", BUSY, BUSY_S)):
                with _load(count):
                    found = [pool.recovery_s() for _ in range(times)]
                    arbiter = [pool.arbiter_s() for _ in range(times)]
                detail = f"{ALLOCATIONS} allocations, {times} kills, load {os.getloadavg()[0]:.1f}"
                report.add(f"pool serves again, {name}, median", statistics.median(found), "s", detail=detail)
                report.add(f"pool serves again, {name}, worst", max(found), "s", at_most=goal_s, detail=detail)
                report.add(f"arbiter runs again, {name}, worst", max(arbiter), "s", at_most=ARBITER_S, detail=detail)
        finally:
            pool.close()


if __name__ == "__main__":
    run("pool_recovery", "Recovery of a killed pool and a killed arbiter", measure)
