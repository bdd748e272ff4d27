"""Memory cap under attack: 64 processes of one container allocate and free in every family as fast as they can.

The attack runs as a user would run it: ``calabash run`` on a pool with its agent. *Over the cap* is the simulator's own
peak of everything on the card, contexts included, minus the cap; and the same as NVML lists it while they run. *Usable*
is what one program gets before its first out-of-memory. A second container on the same card must not be affected.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bench._lab import Lab, program
from bench._report import Report, run
from calabash.adapters.gpu.nvidia.driver import open_driver
from calabash.adapters.gpu.protocol import DriverOptions
from calabash.adapters.gpu.sim import NodeFile, create_node, show_node

CALABASH = str(Path(sys.executable).with_name("calabash"))

GIB = 1 << 30
CAP_BYTES = 60 * GIB
PROCESSES = 64
USABLE_PERCENT = 99.5


def measure_usable(report: Report, lab: Lab) -> None:
    """Measure how much of the cap a single program can allocate."""
    for gib in (1, 8, 39):
        name = f"fill{gib}"
        lab.slot(name, policy=None, memory_limit_bytes=gib * GIB)
        tenant = lab.start(name, "hammer", "--fill")
        tenant.wait_ready()
        result = tenant.result()
        report.add(
            f"usable of a cap of {gib} GiB",
            result["most_bytes"] / (gib * GIB) * 100,
            "%",
            at_least=USABLE_PERCENT,
            detail=f"reported total {result['total'] / GIB:.2f} GiB",
        )
        lab.drop_slot(name)


@contextmanager
def pool(home: Path) -> Iterator[tuple[dict[str, str], NodeFile]]:
    """Run a pool on one simulated card; yield the environment of its programs, and the node."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("CALABASH_", "LD_"))}
    environment["CALABASH_HOME"] = str(home)
    node = create_node(home, "bench", "1xA100-80GB")
    subprocess.run((CALABASH, "up", "--sim", "bench"), env=environment, check=True, stdout=subprocess.DEVNULL)
    try:
        yield environment, node
    finally:
        subprocess.run((CALABASH, "down"), env=environment, check=False, stdout=subprocess.DEVNULL)


def until(held: Callable[[], bool], within_s: float) -> None:
    """Wait for a condition; return after ``within_s`` in any case, so that the figures show the failure."""
    deadline = time.monotonic() + within_s
    while not held() and time.monotonic() < deadline:
        time.sleep(0.02)


def attackers(directory: Path, seconds: int) -> list[str]:
    """Return a shell command that starts the processes, each with its output in a file, all waiting for the end of a pipe."""
    hammer = f"{program('hammer')} --gate --seconds {seconds} --largest-mib 700"
    loop = f"for i in $(seq {PROCESSES}); do {hammer} --seed $i < {directory}/gate > {directory}/out.$i & done; wait"
    return ["sh", "-c", loop]


def measure_attack(report: Report) -> None:
    """Measure 64 processes of one slice at once, started by ``calabash run`` under a pool and its agent."""
    seconds = 5 if report.quick else 20
    with tempfile.TemporaryDirectory(prefix="calabash-bench-") as name:
        home = Path(name)
        os.mkfifo(home / "gate")
        outputs = [home / f"out.{i + 1}" for i in range(PROCESSES)]
        with pool(home) as (environment, node):
            before = show_node(node).devices[0].used_bytes
            command = [CALABASH, "run", "--memory", f"{CAP_BYTES // GIB}GiB", "--cores", "100%", "--"]
            tenants = subprocess.Popen([*command, *attackers(home, seconds)], env=environment)
            gate = os.open(home / "gate", os.O_WRONLY)  # waits for the first of them
            until(lambda: all(out.exists() and out.read_bytes().startswith(b"ready") for out in outputs), 120)
            context = show_node(node).devices[0].used_bytes // PROCESSES
            driver = open_driver(DriverOptions(sim_state=node.state))
            os.close(gate)
            worst = 0
            while tenants.poll() is None:
                listed = sum(p.used_bytes for p in driver.processes(driver.devices()[0].uuid))
                worst = max(worst, listed)
                time.sleep(0.005)
            driver.close()
            peak = show_node(node).devices[0].used_peak_bytes
            until(lambda: show_node(node).devices[0].used_bytes <= before, 5)
            left = show_node(node).devices[0]
        results = [json.loads(out.read_text().splitlines()[-1]) for out in outputs]
    detail = f"peak {peak / GIB:.3f} of {CAP_BYTES / GIB:.0f} GiB, contexts of {context >> 20} MiB included"
    over = max(0, peak - CAP_BYTES)
    report.add(f"over the cap, {PROCESSES} processes, all families", over, "bytes", at_most=0, detail=detail)
    detail = f"{worst / GIB:.3f} GiB at most, asked every few milliseconds"
    report.add("over the cap, as NVML lists it", max(0, worst - CAP_BYTES), "bytes", at_most=0, detail=detail)
    report.add("allocations granted", sum(r["granted"] for r in results), "calls")
    report.add("allocations refused", sum(r["denied"] for r in results), "calls", at_least=1)
    report.add("other errors", sum(r["failed"] for r in results), "calls", at_most=0)
    for family in ("linear", "pitched", "managed", "async", "physical", "array"):
        report.add(f"granted, {family}", sum(r[family] for r in results), "calls", at_least=1)
    report.add("left on the card afterwards", left.alloc_bytes, "bytes", at_most=0)


def measure_neighbour(report: Report, lab: Lab) -> None:
    """Check that a container on the same card is refused nothing that it may have."""
    for name in ("noisy", "quiet"):
        lab.slot(name, policy=None, memory_limit_bytes=16 * GIB)
    noisy = [lab.start("noisy", "hammer", "--seconds", 3, "--largest-mib", 512) for _ in range(8)]
    quiet = lab.start("quiet", "hammer", "--seconds", 2, "--largest-mib", 512, "--hold-mib", 14 * 1024)
    for tenant in itertools.chain(noisy, [quiet]):
        tenant.wait_ready()
    result = quiet.result()
    for tenant in noisy:
        tenant.result()
    report.add("refusals of a neighbour within its cap", result["denied"] + result["failed"], "calls", at_most=0)


def measure(report: Report) -> None:
    """Measure all; on a real card, leave out the part that needs the simulator's accounts."""
    with Lab(gpus="A100-80GB", arbiter=False) as lab:
        report.fact("card", "real" if lab.real else "simulated A100-80GB")
        measure_usable(report, lab)
        if lab.real:
            report.fact("attack", "left out: its truth is the simulator's count")
            return
        measure_attack(report)
        measure_neighbour(report, lab)


if __name__ == "__main__":
    run("memory", "The memory cap under attack", measure)
