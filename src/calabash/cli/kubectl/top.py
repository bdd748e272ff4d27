"""``kubectl calabash top``: shares and memory of a cluster's devices, allocated and used, in the columns of ``calabash top``.

The use is what the agents report: in coarse steps, and up to 15 seconds old.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from calabash.cli import output
from calabash.cli.kubectl import access as kubectl_access
from calabash.cli.kubectl.pods import amounts, in_turn, queue_of, waiting_row, waits
from calabash.cli.output import Column, Row, dash, table
from calabash.cli.pool.top import DEVICES, REASON, SHARE, USED, header, ordered, show, sort_option
from calabash.model.errors import CalabashError, Reason
from calabash.model.units import format_duration, format_mib, parse_duration_s

if TYPE_CHECKING:
    from calabash.adapters.kube import KubeClient
    from calabash.adapters.kube.objects.core import Pod
    from calabash.adapters.kube.objects.resources import GpuNode, GpuNodeDevice

_EVERY = "5s"
GROUPS = ("node", "namespace", "queue")

DEVICE_COLUMNS = (Column(title="NODE", text=lambda r: r["node"]), *DEVICES)
SLICE_COLUMNS = (
    Column(title="NAMESPACE", text=lambda r: r["namespace"]),
    Column(title="POD", text=lambda r: r["pod"]),
    Column(title="CONTAINER", text=lambda r: r["container"], wide=True),
    Column(title="QUEUE", text=lambda r: dash(r["queue"])),
    Column(title="NODE", text=lambda r: r["node"]),
    *SHARE,
)
WAITING_COLUMNS = (
    Column(title="PENDING", text=lambda r: f"{r['namespace']}/{r['pod']}"),
    Column(title="QUEUE", text=lambda r: dash(r["queue"])),
    Column(title="REQUEST", text=lambda r: amounts(r["asked"])),
    Column(title="AGE", text=lambda r: format_duration(r["age_s"]), right=True),
    REASON,
)


def _percent(name: str) -> Callable[[Row], str]:
    return lambda r: "-" if r[name] is None else f"{r[name]}%"


def _group_columns(by: str) -> tuple[Column, ...]:
    return (
        Column(title=by.upper(), text=lambda r: dash(r["name"])),
        Column(title="SLICES", text=lambda r: str(r["slices"]), right=True),
        Column(title="SHARE", text=_percent("core_percent"), right=True),
        Column(title="SHARE USED", text=_percent("core_used_percent"), right=True),
        Column(title="MEMORY LIMIT", text=lambda r: format_mib(r["memory_mib"]), right=True),
        USED,
        Column(title="WAITING", text=lambda r: str(r["waiting"]), right=True),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """Filter of the view by namespace, queue and node; empty values select all."""

    namespace: str = ""
    queue: str = ""
    node: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """State of a cluster at one moment, as rows of tables.

    Args:
        remarks: lines about nodes that are not ready or are cordoned.
    """

    devices: Sequence[Row]
    slices: Sequence[Row]
    waiting: Sequence[Row]
    remarks: Sequence[str] = field(default=())


def read(client: KubeClient, chosen: Chosen) -> Reading:
    """Read the state of the cluster. Raises NOT_FOUND for an unknown node or queue."""
    nodes = kubectl_access.gpu_nodes(client)
    if chosen.node:
        nodes = [node for node in nodes if node.metadata.name == chosen.node]
        if not nodes:
            raise no_such_node(chosen.node)
    if chosen.queue:
        _require_queue(client, chosen.queue)
    pods = kubectl_access.pods_that_ask(client, chosen.namespace)
    queues = kubectl_access.queues_of_namespaces(client, chosen.namespace)
    return reading(nodes, pods, queues, chosen)


def no_such_node(name: str) -> CalabashError:
    return CalabashError(
        f"no agent reports a node {name}",
        reason=Reason.NOT_FOUND,
        hint="list nodes with devices with `kubectl calabash smi`",
    )


def _require_queue(client: KubeClient, name: str) -> None:
    from calabash.adapters.kube.objects.resources import QUEUE  # noqa: PLC0415
    from calabash.model.request import DEFAULT_QUEUE  # noqa: PLC0415

    if name != DEFAULT_QUEUE and client.get(QUEUE, name) is None:
        raise CalabashError(
            f"no queue {name}",
            reason=Reason.NOT_FOUND,
            hint="list queues with `kubectl calabash queue`",
        )


def reading(nodes: Sequence[GpuNode], pods: Sequence[Pod], queues: Mapping[str, str], chosen: Chosen) -> Reading:
    """Return the state of the cluster from its objects.

    Args:
        queues: queue of each namespace.
        chosen: filter of the rows.
    """
    queue_by_uid = {pod.metadata.uid: queue_of(pod, queues) for pod in pods}
    slices = [line for node in nodes for line in _slices(node, queue_by_uid, queues)]
    waiting = [pod for pod in pods if waits(pod)] if not chosen.node else []
    return Reading(
        devices=[_device(node.metadata.name, device) for node in nodes for device in node.status.devices],
        slices=[
            line
            for line in slices
            if chosen.namespace in ("", line["namespace"]) and chosen.queue in ("", line["queue"])
        ],
        waiting=[
            waiting_row(pod, queue_by_uid[pod.metadata.uid])
            for pod in in_turn(waiting, {})
            if chosen.queue in ("", queue_by_uid[pod.metadata.uid])
        ],
        remarks=kubectl_access.remarks(nodes),
    )


def _device(node: str, device: GpuNodeDevice) -> Row:
    return {
        "node": node,
        "uuid": device.uuid,
        "index": device.index,
        "model": device.model,
        "health": device.health,
        "utilization_percent": device.utilization_percent,
        "memory_used_mib": device.memory_used_mib,
        "memory_mib": device.memory_mib,
        "memory_allocated_mib": sum(part.memory_mib - part.spill_mib or device.memory_mib for part in device.slices),
        "core_allocated_percent": sum(part.promised_percent for part in device.slices),
    }


def _slices(node: GpuNode, queue_by_uid: Mapping[str, str], queues: Mapping[str, str]) -> list[Row]:
    rows: list[Row] = []
    for device in node.status.devices:
        for part in device.slices:
            namespace, _, name = part.pod.partition("/")
            rows.append(
                {
                    "namespace": namespace,
                    "pod": name,
                    "container": part.container,
                    "queue": queue_by_uid.get(part.pod_uid) or queues.get(namespace, ""),
                    "node": node.metadata.name,
                    "device_index": device.index,
                    "device": device.uuid,
                    "device_memory_mib": device.memory_mib,
                    "mode": part.mode,
                    "policy": part.policy,
                    "memory_mib": part.memory_mib,
                    "core_percent": part.core_percent,
                    "memory_used_mib": part.memory_used_mib,
                    "core_used_percent": part.core_used_percent,
                }
            )
    return rows


def grouped(found: Reading, by: str) -> list[Row]:
    """Return sums by node, namespace or queue, as percent of one device: two whole devices are 200."""
    names = sorted({line[by] for line in found.slices} | {line[by] for line in found.waiting if by in line})
    return [
        _sum(name, [line for line in found.slices if line[by] == name], [w for w in found.waiting if w.get(by) == name])
        for name in names
    ]


def _sum(name: str, slices: Sequence[Row], waiting: Sequence[Row]) -> Row:
    return {
        "name": name,
        "slices": len(slices),
        "core_percent": sum(line["core_percent"] for line in slices),
        "core_used_percent": _known(slices, "core_used_percent"),
        "memory_mib": sum(line["memory_mib"] or line["device_memory_mib"] for line in slices),
        "memory_used_mib": _known(slices, "memory_used_mib"),
        "waiting": len(waiting),
    }


def _known(slices: Sequence[Row], name: str) -> int | None:
    """Return the sum of a column over the slices whose value is known; None if no slice has a known value."""
    told = [line[name] for line in slices if line[name] is not None]
    return sum(told) if told or not slices else None


def screen(found: Reading, by: str = "", width: int = 0, *, wide: bool = False, sort: str = "device") -> str:
    """Return totals and the tables of devices, slices and waiting pods, cut to ``width`` columns unless it is 0.

    Args:
        by: ``node``, ``namespace`` or ``queue`` to return one table with sums instead; "" for none.
        wide: True to show all columns.
        sort: order of the slices.
    """
    if by:
        return table(_group_columns(by), grouped(found, by), width)
    cut = [line if not width else line[:width] for line in found.remarks]
    pods = len({(row["namespace"], row["pod"]) for row in found.slices})
    totals = header(found.devices, f"{pods} pod{'' if pods == 1 else 's'}", len(found.waiting), width)
    blocks = ["\n".join(totals), "\n".join([table(DEVICE_COLUMNS, found.devices, width), *cut])]
    blocks.append(table([c for c in SLICE_COLUMNS if wide or not c.wide], ordered(found.slices, sort), width))
    if found.waiting:
        blocks.append(table(WAITING_COLUMNS, found.waiting, width))
    return "\n\n".join(blocks)


@click.command()
@kubectl_access.namespaces
@click.option("--node", default="", metavar="NAME", help="Show only devices and slices of this node.")
@click.option(
    "--queue", default="", metavar="NAME", help="Show only slices and waiting pods of this queue, in all namespaces."
)
@click.option(
    "--by", type=click.Choice(GROUPS), help="Show sums by node, by namespace (a tenant of the cluster) or by queue."
)
@sort_option
@click.option("-w", "--watch", is_flag=True, help="Refresh until Ctrl-C.")
@click.option("--interval", default=_EVERY, show_default=True, metavar="TIME", help="Interval of --watch.")
@kubectl_access.options
@output.option
def top(
    *,
    namespace: str,
    everywhere: bool,
    node: str,
    queue: str,
    by: str | None,
    sort: str,
    watch: bool,
    interval: str,
    kubeconfig: str,
    context: str,
    fmt: str,
) -> None:
    """Show devices, slices with their allocated and used shares, and waiting pods.

    Shows the devices of all nodes, and the slices and waiting pods of one namespace, or with -A of all. Usage is reported by
    the agent of each node in steps of a tenth of a device, and is up to 15 seconds old.
    """
    pause_s = max(1.0, parse_duration_s(interval))
    client, own = kubectl_access.connect(kubeconfig, context)
    if everywhere and namespace:
        raise click.UsageError("-n NAMESPACE and -A exclude each other: give one of them")
    where = kubectl_access.checked(namespace) or ("" if everywhere or queue else own)
    chosen = Chosen(namespace=where, queue=kubectl_access.checked(queue), node=kubectl_access.checked(node))
    if fmt in ("json", "yaml", "name") and watch:
        raise click.UsageError(f"--watch cannot be used with -o {fmt}: repeat the command instead")
    if fmt in ("json", "yaml"):
        click.echo(output.document("Top", _body(read(client, chosen), by or ""), fmt))
    elif fmt == "name":
        for line in dict.fromkeys(f"{s['namespace']}/{s['pod']}" for s in read(client, chosen).slices):
            click.echo(line)
    else:
        show(_frames(client, chosen, by or "", wide=fmt == "wide", sort=sort), pause_s if watch else 0.0)


def _body(found: Reading, by: str) -> dict[str, Any]:
    if by:
        return {"by": by, "items": grouped(found, by)}
    return {"devices": list(found.devices), "slices": list(found.slices), "waiting": list(found.waiting)}


def _frames(client: KubeClient, chosen: Chosen, by: str, *, wide: bool, sort: str = "device") -> Callable[[int], str]:
    """Return a function that reads and draws the view; if the cluster does not answer, the last view and the error."""
    last = ""

    def frame(width: int) -> str:
        nonlocal last
        try:
            last = screen(read(client, chosen), by, 0 if wide else width, wide=wide, sort=sort)
        except CalabashError as error:
            if not last or error.reason is not Reason.API_DOWN:
                raise
            return f"{last}\n\nlast state shown; now: {output.printable(error.message)}"
        return last

    return frame
