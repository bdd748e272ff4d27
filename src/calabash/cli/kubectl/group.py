"""``kubectl calabash``: show devices of a cluster, their pods, and why pods wait.

kubectl finds the program by its name, ``kubectl-calabash``. It reads what the user may see in the API server: pods, queues,
and the state of devices that each node's agent reports.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import click

import calabash
from calabash.cli import output
from calabash.cli.kubectl import access as kubectl_access
from calabash.cli.kubectl.device import device
from calabash.cli.kubectl.drain import drain
from calabash.cli.kubectl.pods import amounts, held_by_pod, membership_of, row, waits_for
from calabash.cli.kubectl.queue import queue
from calabash.cli.kubectl.top import top
from calabash.cli.output import Column, Row, dash
from calabash.cli.programs.explain_gang import explain_gang
from calabash.model.errors import CalabashError, Reason
from calabash.model.units import format_duration, format_mib

if TYPE_CHECKING:
    from calabash.adapters.kube import KubeClient
    from calabash.adapters.kube.objects.core import Pod
    from calabash.adapters.kube.objects.resources import GpuNode


def main(argv: list[str] | None = None) -> NoReturn:
    """Run a command and end the process with its exit code."""
    from calabash.cli.main import main as run  # noqa: PLC0415

    run(argv, _dispatch)


def _dispatch(words: list[str]) -> None:
    from calabash.cli.commands import invoke  # noqa: PLC0415

    try:
        invoke(words, cli, "kubectl calabash")
    except CalabashError as error:
        raise kubectl_access.in_users_words(error) from error


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(calabash.__version__, prog_name="kubectl calabash")
def cli() -> None:
    """Show the devices of a cluster, their pods and why pods wait; drain nodes and single devices."""


# ---- ps -----------------------------------------------------------------------------------------------------------

PS_COLUMNS = (
    Column(title="NAMESPACE", text=lambda r: r["namespace"]),
    Column(title="POD", text=lambda r: r["pod"]),
    Column(title="STATE", text=lambda r: r["state"]),
    Column(title="NODE", text=lambda r: dash(r["node"])),
    Column(title="GPU", text=lambda r: ",".join(str(s["device_index"]) for s in r["slices"]) or "-"),
    Column(title="MODE", text=lambda r: ",".join(sorted({s["mode"] for s in r["slices"]})) or "-"),
    Column(title="SLICE", text=lambda r: amounts(r["slices"])),
    Column(title="AGE", text=lambda r: format_duration(r["age_s"]), right=True),
    Column(title="REASON", text=lambda r: dash(r["reason"])),
)


@cli.command()
@kubectl_access.namespaces
@kubectl_access.options
@output.option
def ps(*, namespace: str, everywhere: bool, kubeconfig: str, context: str, fmt: str) -> None:
    """List pods that request devices, with their devices or the reason why they wait."""
    client, own = kubectl_access.connect(kubeconfig, context)
    held = held_by_pod(kubectl_access.gpu_nodes(client))
    where = "" if everywhere else kubectl_access.checked(namespace) or own
    pods = kubectl_access.pods_that_ask(client, where)
    output.emit("PodList", [row(pod, held.get(pod.metadata.uid, [])) for pod in pods], PS_COLUMNS, fmt, name="pod")


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
@kubectl_access.options
@output.option
def smi(*, kubeconfig: str, context: str, fmt: str) -> None:
    """Show the devices of all nodes and their pods, as reported by the nodes' agents."""
    client, _ = kubectl_access.connect(kubeconfig, context)
    nodes = kubectl_access.gpu_nodes(client)
    output.emit("DeviceList", [line for node in nodes for line in _devices(node)], SMI_COLUMNS, fmt, name="uuid")
    if fmt in ("table", "wide"):
        for line in kubectl_access.remarks(nodes):
            click.echo(line)


def _devices(node: GpuNode) -> list[Row]:
    return [
        {
            "node": node.metadata.name,
            "cordoned": node.spec.unschedulable,
            "uuid": device.uuid,
            "index": device.index,
            "model": device.model,
            "health": device.health,
            "reason": device.reason,
            "mode": device.mode,
            "memory_mib": device.memory_mib,
            # A slice without a cap has the card to itself.
            "given_mib": sum(part.memory_mib - part.spill_mib or device.memory_mib for part in device.slices),
            "given_percent": sum(part.promised_percent for part in device.slices),
            "slices": [{"pod": part.pod, "container": part.container} for part in device.slices],
        }
        for device in node.status.devices
    ]


_PLANNER = "calabash-planner"
_LEAVES = ("Moved", "Preempt", "Reclaim")

# ---- why ----------------------------------------------------------------------------------------------------------


@cli.command()
@click.argument("pod", metavar="POD")
@click.option("-n", "--namespace", default="", metavar="NAME", help="Namespace. Default: the context's.")
@kubectl_access.options
@output.option
def why(*, pod: str, namespace: str, kubeconfig: str, context: str, fmt: str) -> None:
    """Explain why a pod waits, with numbers and possible remedies, or show where it was placed."""
    from calabash.adapters.kube.objects.core import POD  # noqa: PLC0415

    client, own = kubectl_access.connect(kubeconfig, context)
    where = kubectl_access.checked(namespace) or own
    found = client.get(POD, kubectl_access.checked(pod), where)
    if found is None:
        raise CalabashError(
            f"no pod {pod} in namespace {where}",
            reason=Reason.NOT_FOUND,
            hint="`kubectl calabash ps -A` lists the pods that request devices; -n selects a namespace",
        )
    held = held_by_pod(kubectl_access.gpu_nodes(client)).get(found.metadata.uid, [])
    body = {**row(found, held), "lines": [*_explained(found), *_asked_to_leave(client, found)]}
    if fmt in ("json", "yaml"):
        click.echo(output.document("Explanation", body, fmt))
    elif fmt == "name":
        click.echo(body["reason"])
    else:
        _print_explanation(body)


def _explained(pod: Pod) -> list[str]:
    """Return the explanations of the planner and of the node's agent from a pod's status."""
    condition = waits_for(pod)
    lines = [condition.message] if condition is not None and condition.message else []
    lines += [membership] if (membership := membership_of(pod)) else []
    gates = [gate.name for gate in pod.spec.scheduling_gates]
    if gates:
        lines.append(f"waits at scheduling gate {', '.join(gates)}")
    for status in (*pod.status.init_container_statuses, *pod.status.container_statuses):
        waiting = status.state.waiting
        if waiting is not None and waiting.message:
            lines.append(f"container {status.name}: {waiting.message}")
    if pod.status.message:
        lines.append(pod.status.message)
    return [output.printable(line) for line in lines]


def _asked_to_leave(client: KubeClient, pod: Pod) -> list[str]:
    """Return the reasons that the planner gave for the eviction of a pod that is ending.

    Returns [] for a pod that is not ending, and if the user may not read the pod's events.
    """
    from calabash.adapters.kube.objects.core import EVENT  # noqa: PLC0415

    if not pod.metadata.deletion_timestamp:
        return []
    mine = f"involvedObject.uid={pod.metadata.uid}"
    try:
        events = client.list(EVENT, pod.metadata.namespace, field_selector=mine).items
    except CalabashError as error:
        if error.reason is not Reason.NOT_PERMITTED:
            raise
        return []
    said = [event for event in events if event.reporting_component == _PLANNER and event.reason in _LEAVES]
    return [output.printable(event.message) for event in said]


def _print_explanation(body: Mapping[str, Any]) -> None:
    reason = f" ({body['reason']})" if body["reason"] else ""
    click.echo(f"{body['namespace']}/{body['pod']}: {body['state']}{reason}")
    if body["node"]:
        indices = ",".join(str(s["device_index"]) for s in body["slices"])
        click.echo(f"  on node {body['node']}" + (f", GPU {indices}: {amounts(body['slices'])}" if indices else ""))
    for line in body["lines"]:
        click.echo(f"  {line}")


for command in (top, queue, drain, device, explain_gang):
    cli.add_command(command)
