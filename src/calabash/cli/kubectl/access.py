"""Shared parts of the commands of ``kubectl calabash``: options, connection, requests and hints for refusals."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from calabash.cli import output
from calabash.model.errors import CalabashError, Reason

if TYPE_CHECKING:
    from calabash.adapters.kube import KubeClient
    from calabash.adapters.kube.objects.core import Pod
    from calabash.adapters.kube.objects.resources import GpuNode

_INSTALL = "helm install calabash charts/calabash -n calabash-system --create-namespace"
_HINTS = {
    Reason.NOT_PERMITTED: "give a namespace that you may read with -n, or ask an administrator for the ClusterRole view "
    "(calabash-drain to drain); `kubectl auth can-i --list` lists your permissions",
    Reason.API_DOWN: "check that `kubectl cluster-info` answers; --kubeconfig and --context select another cluster",
    Reason.NOT_FOUND: "the object was deleted meanwhile; try again",
    Reason.CONFLICT: "another client changed the object meanwhile; try again",
}


def options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that select the cluster."""
    for option in (
        click.option(
            "--context", default="", metavar="NAME", help="Context of the kubeconfig. Default: the current one."
        ),
        click.option(
            "--kubeconfig",
            default="",
            metavar="FILE",
            help="Kubeconfig file. Default: $KUBECONFIG, else ~/.kube/config.",
        ),
    ):
        command = option(command)
    return command


def namespaces(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that select namespaces."""
    for option in (
        click.option("-A", "--all-namespaces", "everywhere", is_flag=True, help="Show pods of all namespaces."),
        click.option("-n", "--namespace", default="", metavar="NAME", help="Namespace. Default: the context's."),
    ):
        command = option(command)
    return command


def connect(kubeconfig: str, context: str) -> tuple[KubeClient, str]:
    """Return a client for the API server, and the namespace of the context, else ``default``."""
    from calabash.adapters.kube import load_client  # noqa: PLC0415

    client = load_client(kubeconfig, context, connections=2, agent="kubectl-calabash")
    return client, client.namespace or "default"


def in_users_words(error: CalabashError) -> CalabashError:
    """Return an error of the API server with a hint for the user of this command; return other errors unchanged."""
    from calabash.adapters.kube import KubeError  # noqa: PLC0415

    if not isinstance(error, KubeError):
        return error
    message = output.printable(error.message)
    if error.status == 401:
        return CalabashError(
            message, reason=error.reason, hint="the credentials are not valid for this cluster: log in again"
        )
    return CalabashError(message, reason=error.reason, hint=_HINTS.get(error.reason, ""))


def checked(name: str) -> str:
    """Return the name if it is "" or a valid name of a Kubernetes object. Raises BAD_REQUEST otherwise."""
    if name and not re.fullmatch(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", name):
        raise CalabashError(f"{name!r} is not a valid name of an object", hint="names consist of a-z, 0-9, - and .")
    return name


def gpu_nodes(client: KubeClient) -> Sequence[GpuNode]:
    """Return the GpuNode objects in the order of names. Raises NOT_FOUND if Calabash is not installed in the cluster."""
    from calabash.adapters.kube.objects.resources import GPU_NODE  # noqa: PLC0415

    require(client, GPU_NODE)
    return sorted(client.list(GPU_NODE).items, key=lambda node: node.metadata.name)


def require(client: KubeClient, kind: Any) -> None:
    """Raise NOT_FOUND if the API server does not serve the kind."""
    if not client.serves(kind):
        raise CalabashError(
            f"the API server does not serve {kind.name}: Calabash is not installed in this cluster",
            reason=Reason.NOT_FOUND,
            hint=_INSTALL,
        )


def pods_that_ask(client: KubeClient, namespace: str = "") -> Sequence[Pod]:
    """Return the pods that request devices, in one namespace, or in all if ``namespace`` is ""."""
    from calabash.adapters.kube.objects.core import POD  # noqa: PLC0415

    found: list[Pod] = []
    for scheduler in _our_schedulers(client):
        found += client.list(POD, namespace, field_selector=f"spec.schedulerName={scheduler}").items
    return found


def _our_schedulers(client: KubeClient) -> list[str]:
    """Return the names of Calabash's schedulers: the default one, and one for each node pool that a queue names."""
    from calabash.adapters.kube.objects.resources import QUEUE  # noqa: PLC0415
    from calabash.kubernetes.objects.names import POOL, SCHEDULER  # noqa: PLC0415
    from calabash.kubernetes.objects.shards import scheduler_of  # noqa: PLC0415

    try:
        queues = client.list(QUEUE, label_selector=POOL).items
    except CalabashError as error:
        if error.reason not in (Reason.NOT_PERMITTED, Reason.NOT_FOUND):
            raise
        return [SCHEDULER]
    return sorted({SCHEDULER, *(scheduler_of(queue.metadata.labels[POOL]) for queue in queues)})


def queues_of_namespaces(client: KubeClient, namespace: str = "") -> dict[str, str]:
    """Return the queue of each namespace, by namespace; empty if the user may not read namespaces."""
    from calabash.adapters.kube.objects.core import NAMESPACE  # noqa: PLC0415
    from calabash.kubernetes.objects.names import QUEUE  # noqa: PLC0415
    from calabash.model.request import DEFAULT_QUEUE  # noqa: PLC0415

    try:
        if namespace:
            one = client.get(NAMESPACE, namespace)
            found = [one] if one is not None else []
        else:
            found = list(client.list(NAMESPACE).items)
    except CalabashError as error:
        if error.reason is not Reason.NOT_PERMITTED:
            raise
        return {}
    return {n.metadata.name: n.metadata.labels.get(QUEUE) or DEFAULT_QUEUE for n in found}


def remarks(nodes: Sequence[GpuNode]) -> list[str]:
    """Return a line for each node that is not ready, and one for each that is cordoned."""
    lines = []
    for node in nodes:
        name = node.metadata.name
        for condition in node.status.conditions:
            if condition.type == "Ready" and condition.status != "True":
                said = output.printable(condition.message)
                lines.append(f"node {name} is not ready: {condition.reason}: {said}")
        if node.spec.unschedulable:
            lines.append(f"node {name} is cordoned: its devices are not allocated to pods")
    return lines


def age_s(since: str | None) -> float:
    """Return the seconds since an ISO timestamp of the API server; 0 if it is missing or invalid."""
    if not since:
        return 0.0
    try:
        begun = datetime.datetime.fromisoformat(since)
    except ValueError:
        return 0.0
    return max(0.0, (datetime.datetime.now(datetime.UTC) - begun).total_seconds())
