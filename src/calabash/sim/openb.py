"""Reader of the openb trace (Alibaba cluster-trace-gpu-v2023): a file of nodes and a file of pods.

It uses the columns ``sn, cpu_milli, memory_mib, gpu, model`` of nodes, and ``name, cpu_milli, memory_mib, num_gpu, gpu_milli``
of pods. The columns ``gpu_spec`` (accepted models, separated by ``|``), ``creation_time`` and ``deletion_time`` of pods are
optional. ``gpu_milli`` is per device, at most 1000.
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
    """Return the nodes in file order. Raises CalabashError(BAD_FILE) with file and line."""
    nodes, seen = [], set()
    for row in read_csv(path, needed=NODE_COLUMNS):
        name = row.text("sn")
        if name in seen:
            raise row.error(f"node {name} is defined twice", "use unique node names")
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
        raise Row(path, 2, {}).error("the file has no node", "add at least one node")
    return nodes


def read_pods(path: Path, models: Container[str] = KNOWN_MODELS) -> Workload:
    """Return the pods in file order. Raises CalabashError(BAD_FILE) with file and line.

    Args:
        models: device models that ``gpu_spec`` may name.
    """
    requests, seen = [], set()
    for row in read_csv(path, needed=POD_COLUMNS):
        name = row.text("name")
        if name in seen:
            raise row.error(f"pod {name} is defined twice", "use unique pod names")
        seen.add(name)
        created, deleted = row.seconds("creation_time"), row.seconds("deletion_time")
        runs_s = max(0.0, deleted - created) if row.values.get("deletion_time") else 0.0
        requests.append(TraceRequest(name=name, shape=_shape(row, models), arrives_s=created, runs_s=runs_s))
    if not requests:
        raise Row(path, 2, {}).error("the file has no pod", "add at least one pod")
    return Workload(name=path.stem, requests=tuple(requests))


def _shape(row: Row, models: Container[str]) -> Shape:
    count = row.whole("num_gpu", most=DEVICES_PER_NODE_MAX)
    milli = row.whole("gpu_milli", default=0, most=WHOLE_MILLI)
    if milli and not count:
        raise row.error(f"gpu_milli is {milli}, and num_gpu asks for no device", "set num_gpu to 1 or more")
    if count and not milli:
        raise row.error(f"{count} devices of 0 milli", "set gpu_milli to 1 to 1000 per device")
    if count > 1 and milli < WHOLE_MILLI:
        raise row.error(f"{count} devices of {milli} milli", "set gpu_milli to 1000 for a request of several devices")
    accepted = frozenset(part for part in row.text("gpu_spec", "").split("|") if part) if count else frozenset()
    for model in sorted(accepted):
        if model not in models:
            raise row.error(f"device model {model!r} is not known", "name models of the trace, like T4|P100")
    return Shape(
        cpu_milli=row.whole("cpu_milli", most=CPU_MILLI_MAX),
        memory_mib=row.whole("memory_mib", most=MEMORY_MIB_MAX),
        gpu_count=count,
        gpu_milli=milli,
        models=accepted,
    )
