"""Reader of the openb trace (Alibaba cluster-trace-gpu-v2023): one file of nodes, one of pods.

Columns that are used: nodes ``sn, cpu_milli, memory_mib, gpu, model``; pods ``name, cpu_milli, memory_mib, num_gpu,
gpu_milli`` and, where present, ``gpu_spec`` (accepted models, separated by ``|``), ``creation_time, deletion_time``.
``gpu_milli`` is per device, at most 1000.
"""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path

from calabash.sched.cluster.shape import WHOLE_MILLI, Shape
from calabash.sched.cluster.spec import NodeSpec
from calabash.sim.rows import Row, read_csv
from calabash.sim.workload import TraceRequest, Workload, simple_node

NODE_COLUMNS = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
POD_COLUMNS = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
DEVICES_PER_NODE_MAX = 64
CPU_MILLI_MAX = 10**7
MEMORY_MIB_MAX = 10**9
KNOWN_MODELS = frozenset({"P100", "T4", "V100M16", "V100M32", "G1", "G2", "G3", "A10"})


def read_nodes(path: Path) -> list[NodeSpec]:
    """Nodes in file order. Raises CalabashError with file, line and hint."""
    nodes, seen = [], set()
    for row in read_csv(path, needed=NODE_COLUMNS):
        name = row.text("sn")
        if name in seen:
            raise row.wrong(f"node {name} is there twice", "node names are unique")
        seen.add(name)
        gpus = row.whole("gpu", most=DEVICES_PER_NODE_MAX)
        nodes.append(
            simple_node(
                name=name,
                cpu_milli=row.whole("cpu_milli", most=CPU_MILLI_MAX),
                memory_mib=row.whole("memory_mib", most=MEMORY_MIB_MAX),
                gpu_count=gpus,
                model=row.text("model", None if gpus else ""),
            )
        )
    if not nodes:
        raise Row(path, 2, {}).wrong("there is no node", "a cluster needs at least one")
    return nodes


def read_pods(path: Path, models: Container[str] = KNOWN_MODELS) -> Workload:
    """Pods in file order; ``models`` are the device models that ``gpu_spec`` may name."""
    requests, seen = [], set()
    for row in read_csv(path, needed=POD_COLUMNS):
        name = row.text("name")
        if name in seen:
            raise row.wrong(f"pod {name} is there twice", "pod names are unique")
        seen.add(name)
        created, deleted = row.seconds("creation_time"), row.seconds("deletion_time")
        runs_s = max(0.0, deleted - created) if row.values.get("deletion_time") else 0.0
        requests.append(TraceRequest(name=name, shape=_shape(row, models), arrives_s=created, runs_s=runs_s))
    if not requests:
        raise Row(path, 2, {}).wrong("there is no pod", "a workload needs at least one")
    return Workload(name=path.stem, requests=tuple(requests))


def _shape(row: Row, models: Container[str]) -> Shape:
    count = row.whole("num_gpu", most=DEVICES_PER_NODE_MAX)
    milli = row.whole("gpu_milli", default=0, most=WHOLE_MILLI)
    if milli and not count:
        raise row.wrong(f"{milli} milli of no device", "num_gpu is 1 or more where gpu_milli is asked for")
    if count and not milli:
        raise row.wrong(f"{count} devices of 0 milli", "gpu_milli is 1 to 1000 per device")
    if count > 1 and milli < WHOLE_MILLI:
        raise row.wrong(f"{count} devices of {milli} milli", "a request of several devices takes whole ones: 1000")
    accepted = frozenset(part for part in row.text("gpu_spec", "").split("|") if part) if count else frozenset()
    for model in sorted(accepted):
        if model not in models:
            raise row.wrong(f"device model {model!r} is not known", "gpu_spec names models of the trace, A|B")
    return Shape(
        cpu_milli=row.whole("cpu_milli", most=CPU_MILLI_MAX),
        memory_mib=row.whole("memory_mib", most=MEMORY_MIB_MAX),
        gpu_count=count,
        gpu_milli=milli,
        models=accepted,
    )
