"""``kubectl calabash``: what runs on a cluster's devices, who holds them, and why a pod waits.

kubectl finds the program by its name, ``kubectl-calabash``. It asks the API server for what the user may see there: pods,
and what each node's agent tells of its devices.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import click

import calabash
from calabash.cli import output
from calabash.cli.output import Column, Row, dash
from calabash.model.errors import CalabashError, Reason
from calabash.model.units import format_duration, format_mib

if TYPE_CHECKING:
    from calabash.seams.kube import KubeClient
    from calabash.seams.kube.objects import Condition, Pod
    from calabash.seams.kube.resources import GpuNode, GpuNodeSlice

Held = tuple[int, "GpuNodeSlice"]  # index of the device, and what is held of it


def main(argv: list[str] | None = None) -> NoReturn:
    """Run a command and end the process with its exit code."""
    from calabash.cli.commands import invoke  # noqa: PLC0415
    from calabash.cli.main import main as run  # noqa: PLC0415

    run(argv, lambda words: invoke(words, cli, "kubectl calabash"))


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(calabash.__version__, prog_name="kubectl calabash")
def cli() -> None:
    """Show the devices of a cluster, who holds them, and why pods wait."""


def _cluster(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say which cluster."""
    for option in (
        click.option(
            "--context", default="", metavar="NAME", help="Context of the kubeconfig. Default: its current one."
        ),
        click.option("--kubeconfig", default="", metavar="FILE", help="Default: $KUBECONFIG, else ~/.kube/config."),
    ):
        command = option(command)
    return command


def connect(kubeconfig: str, context: str) -> tuple[KubeClient, str]:
    """The API server, and the namespace that the context names."""
    from calabash.seams.kube import load_client  # noqa: PLC0415

    client = load_client(kubeconfig, context, connections=2, agent="kubectl-calabash")
    return client, client.namespace or "default"


def _checked(name: str) -> str:
    """A name as objects may have it, or none. Raises BAD_REQUEST."""
    if name and not re.fullmatch(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", name):
        raise CalabashError(f"{name!r} is no name of an object", hint="names are of a-z, 0-9, - and .")
    return name


def _gpu_nodes(client: KubeClient) -> Sequence[GpuNode]:
    from calabash.seams.kube.resources import GPU_NODE  # noqa: PLC0415

    if not client.serves(GPU_NODE):
        raise CalabashError(
            "this cluster knows no GpuNode: Calabash is not installed there",
            reason=Reason.NOT_FOUND,
            hint="helm install calabash charts/calabash -n calabash-system --create-namespace",
        )
    return sorted(client.list(GPU_NODE).items, key=lambda node: node.metadata.name)


# ---- ps -----------------------------------------------------------------------------------------------------------

PS_COLUMNS = (
    Column(title="NAMESPACE", text=lambda r: r["namespace"]),
    Column(title="POD", text=lambda r: r["pod"]),
    Column(title="STATE", text=lambda r: r["state"]),
    Column(title="NODE", text=lambda r: dash(r["node"])),
    Column(title="GPU", text=lambda r: ",".join(str(s["device_index"]) for s in r["slices"]) or "-"),
    Column(title="MODE", text=lambda r: ",".join(sorted({s["mode"] for s in r["slices"]})) or "-"),
    Column(title="SLICE", text=lambda r: _amounts(r["slices"])),
    Column(title="AGE", text=lambda r: format_duration(r["age_s"]), right=True),
    Column(title="REASON", text=lambda r: dash(r["reason"])),
)


def _amounts(slices: Sequence[Row]) -> str:
    """``30% 8GiB`` for each different part, ``2x`` in front when there are several alike."""
    texts = [f"{s['core_percent']}% {format_mib(s['memory_mib']) if s['memory_mib'] else 'whole'}" for s in slices]
    counted = {text: texts.count(text) for text in texts}
    return ", ".join(f"{count}x {text}" if count > 1 else text for text, count in counted.items()) or "-"


@cli.command()
@click.option("-n", "--namespace", default="", metavar="NAME", help="Default: the context's.")
@click.option("-A", "--all-namespaces", "everywhere", is_flag=True, help="Pods of all namespaces.")
@_cluster
@output.option
def ps(*, namespace: str, everywhere: bool, kubeconfig: str, context: str, fmt: str) -> None:
    """List pods that ask for devices: what they hold, or that they wait."""
    from calabash.kubernetes.names import SCHEDULER  # noqa: PLC0415
    from calabash.seams.kube.objects import POD  # noqa: PLC0415

    client, own = connect(kubeconfig, context)
    held = _held(_gpu_nodes(client))
    where = "" if everywhere else _checked(namespace) or own
    pods = client.list(POD, where, field_selector=f"spec.schedulerName={SCHEDULER}").items
    output.emit("PodList", [_row(pod, held.get(pod.metadata.uid, [])) for pod in pods], PS_COLUMNS, fmt, name="pod")


def _held(nodes: Sequence[GpuNode]) -> dict[str, list[Held]]:
    """What every pod holds, by its UID."""
    found: dict[str, list[Held]] = {}
    for node in nodes:
        for device in node.status.devices:
            for part in device.slices:
                found.setdefault(part.pod_uid, []).append((device.index, part))
    return found


def _row(pod: Pod, held: Sequence[Held]) -> Row:
    meta = pod.metadata
    condition = waits_for(pod)
    return {
        "namespace": meta.namespace,
        "pod": meta.name,
        "state": "Terminating" if meta.deletion_timestamp else pod.status.phase or "Pending",
        "node": pod.spec.node_name,
        "slices": [
            {
                "container": part.container,
                "device_index": index,
                "mode": part.mode,
                "policy": part.policy,
                "memory_mib": part.memory_mib,
                "core_percent": part.core_percent,
            }
            for index, part in held
        ],
        "age_s": _age_s(meta.creation_timestamp),
        "reason": condition.reason if condition is not None else "",
    }


def waits_for(pod: Pod) -> Condition | None:
    """The condition that says why it is not placed; None when it is."""
    return next((c for c in pod.status.conditions if c.type == "PodScheduled" and c.status == "False"), None)


def _age_s(since: str | None) -> float:
    if not since:
        return 0.0
    begun = datetime.datetime.fromisoformat(since)
    return max(0.0, (datetime.datetime.now(datetime.UTC) - begun).total_seconds())


# ---- smi ----------------------------------------------------------------------------------------------------------

SMI_COLUMNS = (
    Column(title="NODE", text=lambda r: r["node"]),
    Column(title="GPU", text=lambda r: str(r["index"]), right=True),
    Column(title="MODEL", text=lambda r: r["model"]),
    Column(title="HEALTH", text=lambda r: r["health"]),
    Column(title="MODE", text=lambda r: dash(r["mode"])),
    Column(title="MEMORY", text=lambda r: f"{format_mib(r['given_mib'])}/{format_mib(r['memory_mib'])}", right=True),
    Column(title="CORES", text=lambda r: f"{r['given_percent']}%", right=True),
    Column(title="PODS", text=lambda r: ",".join(sorted({s["pod"] for s in r["slices"]})) or "-"),
    Column(title="UUID", text=lambda r: r["uuid"], wide=True),
    Column(title="REASON", text=lambda r: dash(r["reason"]), wide=True),
)


@cli.command()
@_cluster
@output.option
def smi(*, kubeconfig: str, context: str, fmt: str) -> None:
    """Show the devices of every node and who holds them, as each node's agent tells."""
    client, _ = connect(kubeconfig, context)
    nodes = _gpu_nodes(client)
    output.emit("DeviceList", [row for node in nodes for row in _devices(node)], SMI_COLUMNS, fmt, name="uuid")
    if fmt in ("table", "wide"):
        for node in nodes:
            for condition in node.status.conditions:
                if condition.type == "Ready" and condition.status != "True":
                    said = output.printable(condition.message)
                    click.echo(f"node {node.metadata.name} is not ready: {condition.reason}: {said}")


def _devices(node: GpuNode) -> list[Row]:
    return [
        {
            "node": node.metadata.name,
            "uuid": device.uuid,
            "index": device.index,
            "model": device.model,
            "health": device.health,
            "reason": device.reason,
            "mode": device.mode,
            "memory_mib": device.memory_mib,
            # A slice without a cap has the card to itself.
            "given_mib": sum(part.memory_mib or device.memory_mib for part in device.slices),
            "given_percent": sum(part.core_percent for part in device.slices),
            "slices": [{"pod": part.pod, "container": part.container} for part in device.slices],
        }
        for device in node.status.devices
    ]


# ---- why ----------------------------------------------------------------------------------------------------------


@cli.command()
@click.argument("pod", metavar="POD")
@click.option("-n", "--namespace", default="", metavar="NAME", help="Default: the context's.")
@_cluster
@output.option
def why(*, pod: str, namespace: str, kubeconfig: str, context: str, fmt: str) -> None:
    """Explain why a pod waits, with numbers and what would have to change, or where it was placed."""
    from calabash.seams.kube.objects import POD  # noqa: PLC0415

    client, own = connect(kubeconfig, context)
    where = _checked(namespace) or own
    found = client.get(POD, _checked(pod), where)
    if found is None:
        raise CalabashError(
            f"there is no pod {pod} in namespace {where}",
            reason=Reason.NOT_FOUND,
            hint="see `kubectl calabash ps -A` for those that ask for devices; -n names a namespace",
        )
    body = {**_row(found, _held(_gpu_nodes(client)).get(found.metadata.uid, [])), "lines": _explained(found)}
    if fmt in ("json", "yaml"):
        click.echo(output.document("Explanation", body, fmt))
    elif fmt == "name":
        click.echo(body["reason"])
    else:
        _tell(body)


def _explained(pod: Pod) -> list[str]:
    """What the planner, and on its node the agent, say of it."""
    condition = waits_for(pod)
    lines = [condition.message] if condition is not None and condition.message else []
    gates = [gate.name for gate in pod.spec.scheduling_gates]
    if gates:
        lines.append(f"it is held by {', '.join(gates)}")
    for status in (*pod.status.init_container_statuses, *pod.status.container_statuses):
        waiting = status.state.waiting
        if waiting is not None and waiting.message:
            lines.append(f"container {status.name}: {waiting.message}")
    if pod.status.message:
        lines.append(pod.status.message)
    return [output.printable(line) for line in lines]


def _tell(body: Mapping[str, Any]) -> None:
    reason = f" ({body['reason']})" if body["reason"] else ""
    click.echo(f"{body['namespace']}/{body['pod']}: {body['state']}{reason}")
    if body["node"]:
        indices = ",".join(str(s["device_index"]) for s in body["slices"])
        click.echo(f"  on node {body['node']}" + (f", GPU {indices}: {_amounts(body['slices'])}" if indices else ""))
    for line in body["lines"]:
        click.echo(f"  {line}")
