"""Remove objects that components leave in the API server after the chart was uninstalled.

The chart's ``post-delete`` hook runs the cleanup when no component runs any more. It removes the Leases, the
ResourceSlices of nodes, and the finalizers of network objects, without which those objects and their CRDs could never
be deleted. Pods that are held by the planner's scheduling gate keep it: they cannot start without the product, and a
new installation plans them. Each gets an event that says so. Queues, tenants, GpuNodes and network objects belong to
the administrator and are not deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import blake2b

from calabash.adapters.kube import KubeClient
from calabash.adapters.kube.objects.claims import RESOURCE_SLICE
from calabash.adapters.kube.objects.core import EVENT, LEASE, POD, Pod
from calabash.adapters.kube.objects.network_resources import NETWORK_KINDS
from calabash.kubernetes.objects.names import NETWORK_FINALIZER, PLAN_GATE
from calabash.model.errors import CalabashError, Reason

COMPONENT = "calabash-cleanup"
DRIVER = "calabash.dev"
EVENTS_MAX = 500  # pods that get an event; all are counted
_LEASES = ("calabash-planner", "calabash-scheduler", "calabash-server")
_WAITS = (
    "calabash was uninstalled, so nothing takes away the scheduling gate of this pod and it cannot start;"
    " hint: delete the pod, or install calabash again"
)


@dataclass(slots=True)
class CleanupReport:
    """The result of a cleanup.

    Args:
        leases, slices: numbers of objects deleted.
        finalizers: number of objects whose finalizer was removed.
        waiting: ``namespace/name`` of the pods that are held by the scheduling gate.
        failures: a text for each step that failed.
    """

    leases: int = 0
    slices: int = 0
    finalizers: int = 0
    waiting: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def clean_up(client: KubeClient, namespace: str) -> CleanupReport:
    """Remove the objects of all components. If a step fails, the failure is reported and the next step is made.

    Args:
        client: client of the API server.
        namespace: namespace of the Helm release, which contains the Leases.
    """
    report = CleanupReport()
    steps: tuple[tuple[str, Callable[[], None]], ...] = (
        ("leases", lambda: _delete_leases(client, namespace, report)),
        ("resource slices", lambda: _delete_slices(client, report)),
        ("finalizers", lambda: _remove_finalizers(client, report)),
        ("waiting pods", lambda: _notify_waiting_pods(client, report)),
    )
    for name, step in steps:
        try:
            step()
        except CalabashError as error:
            report.failures.append(f"{name}: {error.message}")
    return report


def _delete_leases(client: KubeClient, namespace: str, report: CleanupReport) -> None:
    for lease in client.list(LEASE, namespace).items:
        name = lease.metadata.name
        if any(name == ours or name.startswith(f"{ours}-") for ours in _LEASES):
            report.leases += client.delete(LEASE, name, namespace, uid=lease.metadata.uid)


def _delete_slices(client: KubeClient, report: CleanupReport) -> None:
    if not client.serves(RESOURCE_SLICE):
        return
    for one in client.list(RESOURCE_SLICE, field_selector=f"spec.driver={DRIVER}").items:
        report.slices += client.delete(RESOURCE_SLICE, one.metadata.name, uid=one.metadata.uid)


def _remove_finalizers(client: KubeClient, report: CleanupReport) -> None:
    for kind in NETWORK_KINDS.values():
        for item in client.list(kind).items if client.serves(kind) else ():
            meta = item.metadata
            if NETWORK_FINALIZER not in meta.finalizers:
                continue
            left = [name for name in meta.finalizers if name != NETWORK_FINALIZER]
            body = {"metadata": {"finalizers": left, "resourceVersion": meta.resource_version}}
            try:
                client.patch(kind, meta.name, body=body)
            except CalabashError as error:
                if error.reason is not Reason.NOT_FOUND:
                    raise
            report.finalizers += 1


def _notify_waiting_pods(client: KubeClient, report: CleanupReport) -> None:
    for pod in _gated(client):
        report.waiting.append(f"{pod.metadata.namespace}/{pod.metadata.name}")
        if len(report.waiting) > EVENTS_MAX:
            continue
        try:
            client.create(EVENT, _event(pod), pod.metadata.namespace)
        except CalabashError as error:  # a namespace that is being deleted takes no events
            if error.reason not in (Reason.CONFLICT, Reason.NOT_FOUND, Reason.NOT_PERMITTED):
                raise


def _gated(client: KubeClient) -> Iterator[Pod]:
    for page in client.pages(POD, field_selector="status.phase=Pending"):
        for pod in page.items:
            if any(gate.name == PLAN_GATE for gate in pod.spec.scheduling_gates):
                yield pod


def _event(pod: Pod) -> dict[str, object]:
    meta, now = pod.metadata, datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    digest = blake2b(f"{meta.uid}/{COMPONENT}".encode(), digest_size=8).hexdigest()
    return {
        "metadata": {"name": f"{meta.name[:200]}.{digest}", "namespace": meta.namespace},
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Pod",
            "name": meta.name,
            "namespace": meta.namespace,
            "uid": meta.uid,
        },
        "type": "Warning",
        "reason": "Uninstalled",
        "message": _WAITS,
        "count": 1,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "source": {"component": COMPONENT},
        "reportingComponent": COMPONENT,
    }
