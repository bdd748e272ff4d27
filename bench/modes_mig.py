"""MIG on a simulated node: cost to create, reuse and make room for an instance and to change the mode; isolation of tenants."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from bench._lab import KERNELS, program
from bench._report import Report
from calabash.adapters.gpu import sim
from calabash.adapters.gpu.nvidia.driver import open_driver
from calabash.adapters.gpu.protocol import DriverOptions
from calabash.model.allocation import AllocationRecord, AllocationState
from calabash.model.device import DeviceUuid, NodeName
from calabash.model.request import MIG_MODE, AllocationId, GpuRequest, ModeName, Placement, Slice
from calabash.node.devices.inventory import Inventory
from calabash.node.modes.mig.executor import MigExecutor
from calabash.node.modes.protocol import NodeTools

CARD = "A100-80GB"
CHANGE_MOST = 0.01


def measure_mig_node(report: Report) -> None:
    """Measure both parts, on a card each; the driver lets only root partition cards."""
    if os.geteuid() != 0:
        report.facts["mig"] = "not measured: needs root"
        return
    with tempfile.TemporaryDirectory() as directory:
        node = sim.create_node(Path(directory), "bench", CARD, seed=1)
        with closing(open_driver(DriverOptions(sim_state=node.state))) as driver:
            inventory = Inventory([driver])
            tools = NodeTools(
                home=Path(directory), inventory=inventory, library=Path(directory) / "none", environment={}
            )
            executor = MigExecutor(tools)
            executor.start()
            card = inventory.devices()[0].uuid
            _starts(report, executor, card)
            _isolation(report, executor, card, node)


def _record(card: DeviceUuid, profile: str = "", start: int = -1, mode: ModeName = MIG_MODE) -> AllocationRecord:
    part = Slice(device=card, memory_mib=1, core_percent=1, profile=profile, start=start)
    return AllocationRecord(
        id=AllocationId(f"{profile}@{start}"),
        state=AllocationState.GRANTED,
        request=GpuRequest(),
        placement=Placement(node=NodeName("bench"), mode=mode, slices=(part,)),
    )


def _timed_ms(call: Callable[[], object]) -> float:
    before = time.perf_counter()
    call()
    return (time.perf_counter() - before) * 1000


def _starts(report: Report, executor: MigExecutor, card: DeviceUuid) -> None:
    """Measure the product's part of starts; on a real card the driver takes longer, by seconds where it resets the card."""
    times: dict[str, list[float]] = {}

    def note(name: str, call: Callable[[], object]) -> None:
        times.setdefault(name, []).append(_timed_ms(call))

    half, small, other = _record(card, "3g.40gb", 4), _record(card, "1g.10gb", 6), _record(card, mode=ModeName("vgpu"))
    for _ in range(10 if report.quick else 50):
        note("mode changed, and an instance made", lambda: executor.provide(half))
        executor.leave(half)
        note("instance given again", lambda: executor.provide(half))
        executor.leave(half)
        note("instance made in place of an idle one", lambda: executor.provide(small))
        executor.leave(small)
        note("card given up to another mode", lambda: executor.vacate(other))
    for name, found in times.items():
        report.add(f"mig: {name}", statistics.median(found), "ms", detail=f"median of {len(found)}")


def _isolation(report: Report, executor: MigExecutor, card: DeviceUuid, node: sim.NodeFile) -> None:
    """Measure a tenant's launches per second, alone and beside three instances that are always busy."""
    seconds = 2 if report.quick else 10
    places = (("2g.20gb", 0), ("1g.10gb", 2), ("1g.10gb", 3), ("3g.40gb", 4))
    tenant, *others = [executor.provide(_record(card, *place))[0].uuid for place in places]
    alone = _launches(node, [tenant], seconds)
    beside = _launches(node, [tenant, *others], seconds)
    change = abs(beside - alone) / alone
    detail = f"{alone:.1f} and {beside:.1f} launches of 1 ms a second"
    report.add("mig: change of a tenant's throughput", change * 100, "%", at_most=CHANGE_MOST * 100, detail=detail)


def _launches(node: sim.NodeFile, uuids: list[DeviceUuid], seconds: int) -> float:
    """Return the launches per second of the first instance; the others begin before it and end after it."""
    running = []
    for order, uuid in reversed(list(enumerate(uuids))):
        length_us, longer_s = (1000, 0) if order == 0 else (700 * order, 3)
        words = [str(program("gpuload")), "--kernels", str(KERNELS), "--kernel-us", str(length_us)]
        words += ["--seconds", str(seconds + longer_s), "--depth", "250"]  # so that no processor has to be quick
        environment = os.environ | sim.environment(node) | {"CUDA_VISIBLE_DEVICES": uuid}
        process = subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            raise RuntimeError(f"a load on {uuid} did not come up")
        running.append(process)
    output, _ = running[-1].communicate(timeout=60 + seconds)
    for process in running[:-1]:
        process.kill()
        process.communicate()
    return _rate(output)


def _rate(output: str) -> float:
    """Return the completed launches per second, over the time in which the program worked."""
    found = json.loads(output.splitlines()[-1])
    return float(found["launches"] * 1e9 / (found["ended_ns"] - found["began_ns"]))
