"""End of a brokered slice: time from the end of its program until its host, its workers and its slot are removed.

``bench.pool`` measures the same of a cooperative slice.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

from tests.daemons.world import World, until
from tests.native.sim_cuda_programs import program

from bench._report import Report, run
from calabash.adapters.host.processes import identify

GONE_S = 1.0
POLLED = "set by poll intervals of the pool"  # why this goal is in seconds


def _gone_s(world: World, client: str) -> float:
    """Return the seconds from the kill of a program until its allocation, its slot and its processes are gone."""
    tenant, _ = world.running(client, isolation="brokered", memory_mib=2048, cores=50)
    until(lambda: tenant.says("ready"), what="the program to have a context")
    found = world.allocation_of(tenant)
    assert found is not None
    tenant.kill()
    begun = time.monotonic()
    until(lambda: not tenant.alive() and not world.allocations() and not world.slots(), what="the slice to come back")
    until(lambda: not any(identify(pid) for pid in found["pids"]), what="the processes to end")
    return time.monotonic() - begun


def measure_ends(report: Report) -> None:
    """Measure on one simulated A100-40GB."""
    client, rounds = str(program("sim_mps_client")), 5 if report.quick else 20
    with tempfile.TemporaryDirectory(prefix="calabash-bench-") as directory:
        world = World(Path(directory) / "home", "1xA100-40GB")
        world.up()
        try:
            took = [_gone_s(world, client) for _ in range(rounds)]
        finally:
            world.close()
    how = f"of {rounds}, median {statistics.median(took):.2f} s; {POLLED}"
    report.add("brokered: host and workers gone, worst", max(took), "s", at_most=GONE_S, detail=how)


if __name__ == "__main__":
    run("modes_ends", "Ends of brokered slices", measure_ends)
