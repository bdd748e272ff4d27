"""Reader of the Calabash trace format: nodes and requests as CSV, or as JSONL with the same field names.

The format is described in docs/reference/trace-format.md.

Nodes have ``name, cpu_milli, memory_mib, gpu_count, gpu_model`` and optionally ``gpu_memory_mib, gpu_mode, labels, taints,
rack``. Requests have ``name, cpu_milli, memory_mib, gpu_count, gpu_milli`` and optionally ``gpu_memory_mib, models, selector,
tolerations, mig_profile, arrives_s, runs_s``. Lists are separated by ``|`` in CSV and are arrays in JSONL.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from calabash.model.errors import CalabashError, Reason
from calabash.sched.cluster.columns import MODE_MIG
from calabash.sched.cluster.mig_tables import geometry_of
from calabash.sched.cluster.shape import WHOLE_MILLI, Shape
from calabash.sched.cluster.spec import GpuSpec, NodeSpec
from calabash.sim.openb import CPU_MILLI_MAX, DEVICES_PER_NODE_MAX, MEMORY_MIB_MAX
from calabash.sim.rows import Row, read_csv, read_jsonl
from calabash.sim.workload import TraceRequest, Workload

NODE_COLUMNS = ("name", "cpu_milli", "memory_mib", "gpu_count", "gpu_model")
NODE_OPTIONAL = ("gpu_memory_mib", "gpu_mode", "labels", "taints", "rack")
REQUEST_COLUMNS = ("name", "cpu_milli", "memory_mib", "gpu_count", "gpu_milli")
REQUEST_OPTIONAL = (
    "gpu_memory_mib", "models", "selector", "tolerations", "mig_profile", "arrives_s", "runs_s",
)  # fmt: skip
CARD_MEMORY_MIB_MAX = 10**7


def read_nodes(path: Path) -> list[NodeSpec]:
    """Return the nodes in file order. Raises CalabashError(BAD_FILE) with file and line."""
    nodes, seen = [], set()
    for row in _rows(path, NODE_COLUMNS, NODE_OPTIONAL):
        name = row.text("name")
        if name in seen:
            raise row.error(f"node {name} is defined twice", "use unique node names")
        seen.add(name)
        count = row.whole("gpu_count", most=DEVICES_PER_NODE_MAX)
        gpu = _card(row, count)
        labels = dict(_pair(row, text) for text in _list(row, "labels"))
        nodes.append(
            NodeSpec(
                name=name,
                cpu_milli=row.whole("cpu_milli", most=CPU_MILLI_MAX),
                memory_mib=row.whole("memory_mib", most=MEMORY_MIB_MAX),
                gpus=(gpu,) * count,
                labels=labels,
                taints=tuple(_list(row, "taints")),
                domains=tuple(filter(None, row.text("rack", "").split("/"))),
            )
        )
    if not nodes:
        raise Row(path, 1, {}).error("the file has no node", "add at least one node")
    return nodes


def read_requests(path: Path, nodes: Iterable[NodeSpec]) -> Workload:
    """Return the requests in file order.

    Raises CalabashError(BAD_FILE) with file and line, also for a device model that none of ``nodes`` has.
    """
    known = {gpu.model for node in nodes for gpu in node.gpus}
    requests, seen = [], set()
    for row in _rows(path, REQUEST_COLUMNS, REQUEST_OPTIONAL):
        name = row.text("name")
        if name in seen:
            raise row.error(f"request {name} is defined twice", "use unique request names")
        seen.add(name)
        models = frozenset(_list(row, "models"))
        for model in sorted(models - known):
            raise row.error(f"no node has device model {model!r}", f"use one of: {', '.join(sorted(known))}")
        count = row.whole("gpu_count", most=DEVICES_PER_NODE_MAX)
        try:
            shape = Shape(
                cpu_milli=row.whole("cpu_milli", most=CPU_MILLI_MAX),
                memory_mib=row.whole("memory_mib", most=MEMORY_MIB_MAX),
                gpu_count=count,
                gpu_milli=row.whole("gpu_milli", default=0, most=WHOLE_MILLI),
                gpu_memory_mib=row.whole("gpu_memory_mib", default=0, most=CARD_MEMORY_MIB_MAX),
                models=models,
                selector=tuple(_list(row, "selector")),
                tolerations=frozenset(_list(row, "tolerations")),
                mig_profile=row.text("mig_profile", ""),
            )
        except CalabashError as error:
            if error.reason is Reason.BAD_FILE:  # of the row, which names the file and line already
                raise
            raise row.error(error.message, error.hint) from None
        requests.append(
            TraceRequest(name=name, shape=shape, arrives_s=row.seconds("arrives_s"), runs_s=row.seconds("runs_s"))
        )
    if not requests:
        raise Row(path, 1, {}).error("the file has no request", "add at least one request")
    return Workload(name=path.stem, requests=tuple(requests))


def _card(row: Row, count: int) -> GpuSpec:
    model = row.text("gpu_model", None if count else "")
    memory_mib = row.whole("gpu_memory_mib", default=0, most=CARD_MEMORY_MIB_MAX)
    mode = row.text("gpu_mode", "")
    if mode not in ("", MODE_MIG):
        raise row.error(
            f"device mode {mode!r} is not known", "write mig, or leave it empty for devices that follow demand"
        )
    if mode and geometry_of(model, memory_mib) is None:
        raise row.error(f"device model {model!r} has no MIG profiles", "leave gpu_mode empty")
    return GpuSpec(model=model, memory_mib=memory_mib, mode=mode)


def _rows(path: Path, needed: tuple[str, ...], optional: tuple[str, ...]) -> Iterable[Row]:
    known = {*needed, *optional}
    for row in read_jsonl(path) if path.suffix == ".jsonl" else read_csv(path, needed=needed):
        for name in row.values:
            if name not in known:
                raise row.error(f"column {name!r} is not known", f"use only {', '.join((*needed, *optional))}")
        for name in needed:
            if name not in row.values:
                raise row.error(f"field {name} is missing", f"every row needs {', '.join(needed)}")
        yield row


def _list(row: Row, column: str) -> list[str]:
    value = row.values.get(column)
    if value is None or value == "":
        return []
    if isinstance(value, list):
        if not all(isinstance(item, str) for item in value):
            raise row.error(f"field {column} has an item that is not a string", "write an array of strings")
        return value
    return [part.strip() for part in str(value).split("|") if part.strip()]


def _pair(row: Row, text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise row.error(f"label {text!r} is not key=value", "write it like zone=a|pool=training")
    return key, value
