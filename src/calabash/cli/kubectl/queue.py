"""``kubectl calabash queue``: show the tree of queues, their amounts, and the waiting pods in order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from calabash.cli import output
from calabash.cli.kubectl import access as kubectl_access
from calabash.cli.kubectl.pods import amounts, in_turn, queue_of, runs, waiting_row, waits
from calabash.cli.output import Column, Row, dash, table, terminal_width
from calabash.cli.pool.queue import columns_of, gpus
from calabash.cli.pool.top import REASON
from calabash.model.errors import CalabashError, Reason
from calabash.model.units import format_duration

if TYPE_CHECKING:
    from calabash.adapters.kube import KubeClient
    from calabash.adapters.kube.objects.core import Pod
    from calabash.adapters.kube.objects.resources import GpuNode, KubeQueue

_SHOWN = 10  # waiting pods that are shown if no queue is named

COLUMNS = (
    Column(title="NAME", text=lambda r: f"{'· ' * r['depth']}{r['name']}"),
    gpus("guarantee"),
    gpus("limit"),
    gpus("weight", wide=True),
    gpus("allocated"),
    gpus("guaranteed", title="GUARANTEED SHARE", wide=True),
    gpus("borrowed"),
    Column(title="RUNNING", text=lambda r: dash(r["running"]), right=True),
    Column(title="WAITING", text=lambda r: dash(r["waiting"]), right=True),
    Column(title="USERS", text=lambda r: dash(",".join(r["users"])), wide=True),
    Column(title="GROUPS", text=lambda r: dash(",".join(r["groups"])), wide=True),
)
WAITING_COLUMNS = (
    Column(title="QUEUE", text=lambda r: dash(r["queue"])),
    Column(title="POSITION", text=lambda r: str(r["turn"]), right=True),
    Column(title="POD", text=lambda r: f"{r['namespace']}/{r['pod']}"),
    Column(title="PRIORITY", text=lambda r: str(r["priority"]), right=True),
    Column(title="GANG", text=lambda r: dash(r["gang"])),
    Column(title="REQUEST", text=lambda r: amounts(r["asked"])),
    Column(title="AGE", text=lambda r: format_duration(r["age_s"]), right=True),
    REASON,
    Column(title="MESSAGE", text=lambda r: dash(r["message"]), wide=True),
)


@dataclass(slots=True)
class QueueTally:
    """Running and waiting pods of one queue.

    Args:
        holds: number of devices that running pods hold, by namespace.
        running: number of running pods.
        waiting: the waiting pods.
    """

    holds: dict[str, float] = field(default_factory=dict)
    running: int = 0
    waiting: list[Pod] = field(default_factory=list)


def tallies(pods: Iterable[Pod], nodes: Sequence[GpuNode], queues: Mapping[str, str]) -> dict[str, QueueTally]:
    """Return the running and waiting pods of each queue, by name; "" has the pods whose queue the user may not read.

    Args:
        queues: queue of each namespace.
    """
    memory = {device.uuid: device.memory_mib for node in nodes for device in node.status.devices}
    found: dict[str, QueueTally] = {}
    for pod in pods:
        tally = found.setdefault(queue_of(pod, queues), QueueTally())
        if runs(pod):
            tally.running += 1
            namespace = pod.metadata.namespace
            tally.holds[namespace] = tally.holds.get(namespace, 0.0) + devices_of(pod, memory)
        elif waits(pod):
            tally.waiting.append(pod)
    return found


def devices_of(pod: Pod, memory: Mapping[str, int]) -> float:
    """Return the devices that the pod's plan is charged for: for each device the larger share of compute and memory."""
    from calabash.kubernetes.objects.names import PLAN  # noqa: PLC0415
    from calabash.kubernetes.objects.plan import read_plan  # noqa: PLC0415

    try:
        plan = read_plan(pod.metadata.annotations.get(PLAN, ""))
    except CalabashError:
        return 0.0
    shares: dict[str, float] = {}
    for container in plan.containers:
        for part in container.slices:
            whole = memory.get(part.device, 0)
            of_memory = part.memory_mib / whole if part.memory_mib and whole else 0.0 if part.memory_mib else 1.0
            shares[part.device] = shares.get(part.device, 0.0) + max(part.core_percent / 100, of_memory)
    return sum(min(1.0, share) for share in shares.values())


def tree(queues: Sequence[KubeQueue]) -> Iterator[tuple[int, KubeQueue]]:
    """Yield each queue once with its depth, parents before children; a queue without an existing parent is a root."""
    left = {queue.metadata.name: queue for queue in sorted(queues, key=lambda queue: queue.metadata.name)}
    children: dict[str, list[KubeQueue]] = {}
    for queue in left.values():
        children.setdefault(queue.spec.parent if queue.spec.parent in left else "", []).append(queue)

    def below(top: KubeQueue) -> Iterator[tuple[int, KubeQueue]]:
        stack = [(0, top)]
        while stack:
            depth, queue = stack.pop()
            if left.pop(queue.metadata.name, None) is not None:
                yield depth, queue
                stack += [(depth + 1, child) for child in reversed(children.get(queue.metadata.name, ()))]

    for queue in children.get("", ()):
        yield from below(queue)
    while left:  # parents of each other, which nothing forbids in the API server
        yield from below(next(iter(left.values())))


def rows(queues: Sequence[KubeQueue], found: Mapping[str, QueueTally] | None) -> list[dict[str, Any]]:
    """Return one row for each queue.

    Its amounts come from the status that the planner wrote. If there is no status, they are counted from pods.

    Args:
        found: pods of each queue; None if the user may not read pods.
    """
    from calabash.adapters.kube.objects.resources import KubeQueueStatus  # noqa: PLC0415

    made: dict[str, dict[str, Any]] = {}
    for depth, queue in tree(queues):
        spec, status = queue.spec, queue.status
        row: dict[str, Any] = {
            "name": queue.metadata.name,
            "parent": spec.parent,
            "depth": depth,
            "guarantee": spec.deserved,
            "deserved": spec.deserved,  # the former name
            "limit": spec.limit,
            "weight": spec.weight,
            "users": list(spec.users),
            "groups": list(spec.groups),
        }
        told = status != KubeQueueStatus()
        if told:
            row |= {
                name: getattr(status, name) for name in ("allocated", "guaranteed", "borrowed", "running", "waiting")
            }
        else:
            row |= _counted(found, queue.metadata.name)
        row |= {
            "fair_share": status.fair_share,
            "effective_weight": status.effective_weight,
            "past_use_device_s": status.past_use_device_seconds,
            "half_life_s": status.half_life_seconds,
        }
        made[queue.metadata.name] = row | {"from": "planner" if told else "pods"}
    _sum_up(made)
    return list(made.values())


def _counted(found: Mapping[str, QueueTally] | None, name: str) -> dict[str, Any]:
    """Return the amounts of a queue as counted from pods; all are None if the user may not read pods."""
    if found is None:
        return dict.fromkeys(("allocated", "guaranteed", "borrowed", "running", "waiting"))
    tally = found.get(name, QueueTally())
    holds = round(sum(tally.holds.values()), 3)
    return {"allocated": holds, "running": tally.running, "waiting": len(tally.waiting)}


def _sum_up(made: Mapping[str, dict[str, Any]]) -> None:
    """Complete the rows that were counted from pods: add the amounts of child queues to those of their parents.

    Also sets how many of the allocated devices are ``guaranteed`` and how many ``borrowed``.
    """
    for row in reversed(list(made.values())):  # children come after their parents
        parent = made.get(row["parent"]) if row["depth"] else None
        if parent is not None and parent["from"] == "pods" and None not in (row["allocated"], parent["allocated"]):
            for name in ("allocated", "running", "waiting"):
                parent[name] += row[name]
    for row in made.values():
        if row["from"] == "pods" and row["allocated"] is not None:
            row["guaranteed"] = min(row["guarantee"], row["allocated"])
            row["borrowed"] = round(row["allocated"] - row["guaranteed"], 3)


def waiting_rows(found: Mapping[str, QueueTally], names: Iterable[str]) -> list[Row]:
    """Return the waiting pods of the queues, each queue in its order."""
    lines: list[Row] = []
    for name in names:
        tally = found.get(name, QueueTally())
        pods = in_turn(tally.waiting, tally.holds)
        lines += [{"turn": turn, **waiting_row(pod, name)} for turn, pod in enumerate(pods, 1)]
    return lines


def below(made: Sequence[Row], name: str) -> list[Row]:
    """Return a queue and all queues below it. Raises NOT_FOUND if there is no such queue."""
    at = next((i for i, row in enumerate(made) if row["name"] == name), None)
    if at is None:
        raise CalabashError(
            f"no queue {name}",
            reason=Reason.NOT_FOUND,
            hint="list queues with `kubectl calabash queue`",
        )
    end = next((i for i in range(at + 1, len(made)) if made[i]["depth"] <= made[at]["depth"]), len(made))
    return list(made[at:end])


@click.command()
@click.argument("name", required=False, default="")
@kubectl_access.options
@output.option
def queue(*, name: str, kubeconfig: str, context: str, fmt: str) -> None:
    """Show queues with their guaranteed, allocated and borrowed devices, and their waiting pods in order with reasons.

    With NAME, show this queue, the queues below it, and all their waiting pods. POSITION is the order in which a queue serves
    pods: by priority, highest first; then the namespace with the fewest devices of the queue; then the longest waiting pod.
    Pods that do not fit are skipped. If past use counts, PAST USE is what a queue used above its guarantee, in device-hours of
    which older ones count less, and EFFECTIVE WEIGHT its weight after the correction by it.
    """
    kubectl_access.checked(name)
    client, _ = kubectl_access.connect(kubeconfig, context)
    queues, found = _read(client)
    made: Sequence[Row] = rows(queues, found)
    if name:
        made = below(made, name)
    waiting = waiting_rows(found or {}, [row["name"] for row in made])
    if fmt in ("json", "yaml"):
        items = [{**row, "waiting_pods": [w for w in waiting if w["queue"] == row["name"]]} for row in made]
        click.echo(output.document("QueueList", items, fmt))
        return
    output.emit("QueueList", made, columns_of(made, COLUMNS), fmt, name="name")
    if fmt == "name":
        return
    if found is None:
        click.echo("waiting pods are not shown: you may not list pods of all namespaces")
    _print_waiting(waiting, len(waiting) if name else _SHOWN, wide=fmt == "wide")


def _read(client: KubeClient) -> tuple[list[KubeQueue], dict[str, QueueTally] | None]:
    """Return all queues, and the pods of each queue by name; None for the pods if the user may not read all pods."""
    from calabash.adapters.kube.objects.meta import ObjectMeta  # noqa: PLC0415
    from calabash.adapters.kube.objects.resources import QUEUE, KubeQueue  # noqa: PLC0415
    from calabash.model.request import DEFAULT_QUEUE  # noqa: PLC0415

    kubectl_access.require(client, QUEUE)
    queues = list(client.list(QUEUE).items)
    if DEFAULT_QUEUE not in {q.metadata.name for q in queues}:
        queues.append(KubeQueue(metadata=ObjectMeta(name=DEFAULT_QUEUE)))
    try:
        pods = kubectl_access.pods_that_ask(client)
    except CalabashError as error:
        if error.reason is not Reason.NOT_PERMITTED:
            raise
        return queues, None
    return queues, tallies(pods, kubectl_access.gpu_nodes(client), kubectl_access.queues_of_namespaces(client))


def _print_waiting(waiting: Sequence[Row], shown: int, *, wide: bool) -> None:
    if not waiting:
        return
    columns = [c for c in WAITING_COLUMNS if wide or not c.wide]
    click.echo("\n" + table(columns, waiting[:shown], 0 if wide else terminal_width()))
    if len(waiting) > shown:
        click.echo(f"… and {len(waiting) - shown} more; `kubectl calabash queue NAME` shows all pods of a queue")
