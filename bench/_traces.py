"""Traces for the scheduler's benchmarks: openb if it is available beside the checkout, else a generated one.

openb (Alibaba cluster-trace-gpu-v2023) is not part of the repository: put its files in ``../shared/traces/openb`` or
name their folder in ``CALABASH_OPENB``. The generated trace only shows that the benchmark works: its figures cannot be compared
with published values, so goals and published values are left out.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from bench._report import ROOT, Report
from calabash.sched.cluster.spec import NodeSpec
from calabash.sim import generate, openb
from calabash.sim.workload import Workload

NODE_FILE = "openb_node_list_gpu_node.csv"
GENERATED_NODES = 120
GENERATED_REQUESTS = 900


@dataclass(frozen=True, slots=True, kw_only=True)
class Traces:
    """A cluster and the workloads for it; ``published`` is False for the generated ones."""

    nodes: list[NodeSpec]
    workloads: dict[str, Workload]
    published: bool


def load(report: Report, names: tuple[str, ...]) -> Traces:
    """Load the workloads of these names; record the source in the report."""
    folder = Path(os.environ.get("CALABASH_OPENB", ROOT.parent / "shared" / "traces" / "openb"))
    files = {name: folder / f"openb_pod_list_{name}.csv" for name in names}
    absent = [path.name for path in (folder / NODE_FILE, *files.values()) if not path.is_file()]
    if absent:
        small = generate.cluster(GENERATED_NODES, seed=1)
        report.fact("trace", f"generated, {GENERATED_NODES} nodes: openb is not here ({', '.join(absent)})")
        workload = generate.workload(GENERATED_REQUESTS, seed=1)
        return Traces(nodes=small, workloads={"generated": workload}, published=False)
    nodes = openb.read_nodes(folder / NODE_FILE)
    workloads = {name: openb.read_pods(path) for name, path in files.items()}
    devices = sum(len(node.gpus) for node in nodes)
    report.fact("trace", f"openb, {len(nodes):,} nodes, {devices:,} devices")
    return Traces(nodes=nodes, workloads=workloads, published=True)
