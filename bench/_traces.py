"""The traces that the scheduler's benchmarks run on: openb where it lies beside the checkout, else a generated one.

openb (Alibaba cluster-trace-gpu-v2023) is not part of the repository: put its files in ``../shared/traces/openb`` or
name their folder in ``CALABASH_OPENB``. Without it the generated trace shows that the benchmark works; its figures
compare with nothing that was published, so goals and published values are left out.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench._report import ROOT, Report
from calabash.sched.cluster import NodeSpec
from calabash.sched.shape import Shape
from calabash.sim import openb
from calabash.sim.workload import TraceRequest, Workload, simple_node

NODE_FILE = "openb_node_list_gpu_node.csv"
_SHARES_MILLI = (810, 500, 460, 320, 250, 160, 80)


@dataclass(frozen=True, slots=True, kw_only=True)
class Traces:
    """A cluster and what it is asked for; ``published`` is False for the generated one."""

    nodes: list[NodeSpec]
    workloads: dict[str, Workload]
    published: bool


def load(report: Report, names: tuple[str, ...]) -> Traces:
    """The workloads of these names; says in the report what it took."""
    folder = Path(os.environ.get("CALABASH_OPENB", ROOT.parent / "shared" / "traces" / "openb"))
    files = {name: folder / f"openb_pod_list_{name}.csv" for name in names}
    absent = [path.name for path in (folder / NODE_FILE, *files.values()) if not path.is_file()]
    if absent:
        report.fact("trace", f"generated, 480 devices: openb is not here ({', '.join(absent)})")
        return Traces(nodes=generated_nodes(), workloads={"generated": generated_workload(seed=1)}, published=False)
    nodes = openb.read_nodes(folder / NODE_FILE)
    workloads = {name: openb.read_pods(path) for name, path in files.items()}
    devices = sum(len(node.gpus) for node in nodes)
    report.fact("trace", f"openb, {len(nodes):,} nodes, {devices:,} devices")
    return Traces(nodes=nodes, workloads=workloads, published=True)


def generated_nodes() -> list[NodeSpec]:
    """50 nodes of eight devices and 40 of two, the latter rich in CPU."""
    large = [
        simple_node(name=f"eight-{i}", cpu_milli=96_000, memory_mib=393_216, gpu_count=8, model="large")
        for i in range(50)
    ]
    small = [
        simple_node(name=f"two-{i}", cpu_milli=104_000, memory_mib=524_288, gpu_count=2, model="small")
        for i in range(40)
    ]
    return large + small


def generated_workload(*, seed: int, count: int = 700) -> Workload:
    """Shares, whole devices, a few large jobs and some that need none, drawn from fixed frequencies."""
    rng = np.random.default_rng(seed)
    requests = []
    for index in range(count):
        kind = rng.random()
        cpu, memory = int(rng.choice([2000, 4000, 8000, 11000])), int(rng.choice([4096, 16384, 32768]))
        if kind < 0.12:
            shape = Shape(cpu_milli=cpu, memory_mib=memory)
        elif kind < 0.52:
            shape = Shape(cpu_milli=cpu, memory_mib=memory, gpu_count=1, gpu_milli=int(rng.choice(_SHARES_MILLI)))
        elif kind < 0.97:
            shape = Shape(cpu_milli=cpu, memory_mib=memory, gpu_count=1, gpu_milli=1000)
        else:
            devices = int(rng.choice([2, 4, 8]))
            shape = Shape(cpu_milli=9000 * devices, memory_mib=memory, gpu_count=devices, gpu_milli=1000)
        requests.append(TraceRequest(name=f"request-{index}", shape=shape))
    return Workload(name="generated", requests=tuple(requests))
