"""What the server knows of the cluster: mirrors of its pods, devices, queues, namespaces and tenants."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import structlog

from calabash.adapters.kube import KubeClient, Mirror, MirrorChange, PodSharing
from calabash.adapters.kube.objects.core import NAMESPACE, POD, Condition, Namespace, Pod, PodStatus
from calabash.adapters.kube.objects.resources import GPU_NODE, QUEUE, TENANT, GpuNode, KubeQueue, KubeTenant
from calabash.kubernetes.object_limits import TEXT_MAX, bounded_annotations, bounded_labels, bounded_pod
from calabash.kubernetes.objects import names
from calabash.kubernetes.objects.tenants import queue_of_namespace
from calabash.kubernetes.planner.state.facts import PodFacts
from calabash.kubernetes.planner.watch.facts_from_objects import may_concern_us, pod_facts
from calabash.kubernetes.skipped_objects import SkippedObjects
from calabash.model.request import DEFAULT_QUEUE

TOLD_S = 5.0  # within which a mirror has heard of what was written

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedPod:
    """A pod that asks for devices: what the planner reads of it, and what people are told. ``waits`` is the condition that
    says why it has no node, None when it has one; ``begun_at``: RFC 3339, when its kubelet took it."""

    facts: PodFacts
    phase: str
    waits: Condition | None
    begun_at: str


class ClusterState:
    """See the module's description.

    Args:
        changed: called when tenants, queues or namespaces are otherwise than they were; from any thread.
    """

    def __init__(self, client: KubeClient, *, changed: Callable[[], object] = lambda: None) -> None:
        self._changed = changed
        self._pods: dict[str, ServedPod] = {}
        self._told = threading.Condition()
        skipped = SkippedObjects("calabash-server").note
        self._pod_mirror: Mirror[Pod] = Mirror(
            client,
            POD,
            on_change=self._pod,
            on_error=_lost,
            on_skipped=skipped,
            keep=_PodKeeping(),
            only=may_concern_us,
        )
        self._nodes: Mirror[GpuNode] = Mirror(
            client, GPU_NODE, on_change=self._news, on_error=_lost, on_skipped=skipped
        )
        self._queues: Mirror[KubeQueue] = Mirror(
            client, QUEUE, on_change=self._other, on_error=_lost, on_skipped=skipped
        )
        self._namespaces: Mirror[Namespace] = Mirror(
            client, NAMESPACE, on_change=self._other, on_error=_lost, on_skipped=skipped, keep=_keep_namespace
        )
        self._tenants: Mirror[KubeTenant] = Mirror(
            client, TENANT, on_change=self._other, on_error=_lost, on_skipped=skipped
        )

    def start(self) -> None:
        for mirror in self._mirrors():
            mirror.start()

    def stop(self) -> None:
        for mirror in self._mirrors():
            mirror.stop()

    def synced(self, timeout_s: float) -> list[str]:
        """What is not known yet when that time is over; nothing when all is."""
        deadline_s = time.monotonic() + timeout_s
        return [m.plural for m in self._mirrors() if not m.synced(max(0.0, deadline_s - time.monotonic()))]

    def pods(self) -> list[ServedPod]:
        """All that ask for devices, oldest first."""
        found = list(self._pods.values())  # at once: its mirror goes on
        found.sort(key=lambda pod: (pod.facts.created_at_s, pod.facts.uid))
        return found

    def pod(self, uid: str) -> ServedPod | None:
        return self._pods.get(uid)

    def nodes(self) -> list[GpuNode]:
        """By name."""
        return [node for _, node in sorted(self._nodes.snapshot().items())]

    def node(self, name: str) -> GpuNode | None:
        return self._nodes.get(name)

    def queues(self) -> list[KubeQueue]:
        """By name."""
        return [queue for _, queue in sorted(self._queues.snapshot().items())]

    def queue(self, name: str) -> KubeQueue | None:
        return self._queues.get(name)

    def tenants(self) -> list[KubeTenant]:
        """By name."""
        return [tenant for _, tenant in sorted(self._tenants.snapshot().items())]

    def tenant(self, name: str) -> KubeTenant | None:
        return self._tenants.get(name)

    def queue_of(self, facts: PodFacts) -> str:
        """The queue of a pod, in the API server's words: its own, else that of its namespace."""
        own = facts.request.queue if facts.request is not None else ""
        return own or queue_of_namespace(self._namespaces.get(facts.namespace)) or DEFAULT_QUEUE

    def namespaces_in(self, queue: str) -> int:
        """How many namespaces name that queue."""
        return sum(queue_of_namespace(found) == queue for found in self._namespaces.snapshot().values())

    def wait_for_tenant(
        self, name: str, seen: Callable[[KubeTenant | None], bool], *, timeout_s: float = TOLD_S
    ) -> bool:
        """Wait until the mirror of tenants shows that; False when it does not come to show it."""
        return self.wait_until(lambda: seen(self._tenants.get(name)), timeout_s=timeout_s)

    def wait_until(self, seen: Callable[[], bool], *, timeout_s: float = TOLD_S) -> bool:
        """Wait until that is so of tenants, queues, namespaces or devices; False when it does not come to be."""
        with self._told:
            return self._told.wait_for(seen, timeout_s)

    # -- inside ------------------------------------------------------------------------------------------------

    def _mirrors(self) -> list[Mirror[Any]]:
        return [self._tenants, self._namespaces, self._queues, self._nodes, self._pod_mirror]

    def _pod(self, change: MirrorChange[Pod]) -> None:
        pod = change.after
        facts = pod_facts(pod) if pod is not None else None
        if pod is None or facts is None or facts.finished:
            gone = pod or change.before
            if gone is not None:
                self._pods.pop(gone.metadata.uid, None)
            return
        waits = next((c for c in pod.status.conditions if c.type == "PodScheduled" and c.status != "True"), None)
        self._pods[facts.uid] = ServedPod(
            facts=facts, phase=pod.status.phase, waits=waits, begun_at=pod.status.start_time or ""
        )

    def _other(self, change: MirrorChange[Any]) -> None:
        self._news(change)
        self._changed()

    def _news(self, _: MirrorChange[Any]) -> None:
        with self._told:
            self._told.notify_all()


class _PodKeeping:
    """What of a pod is held."""

    def __init__(self) -> None:
        self._share = PodSharing()

    def __call__(self, pod: Pod) -> Pod:
        meta, spec, status = pod.metadata, pod.spec, pod.status
        meta = msgspec.structs.replace(
            meta,
            annotations=bounded_annotations(meta.annotations),
            labels=bounded_labels(meta.labels),
            owner_references=meta.owner_references[:1] if meta.controller is None else (meta.controller,),
            finalizers=(),
        )
        if names.REQUEST in meta.annotations:  # what it asks for is read from there
            spec = msgspec.structs.replace(spec, containers=(), init_containers=(), ephemeral_containers=(), volumes=())
        conditions = tuple(
            msgspec.structs.replace(c, message=c.message[:TEXT_MAX])
            for c in status.conditions
            if c.type == "PodScheduled"
        )
        told = PodStatus(phase=status.phase, reason=status.reason, start_time=status.start_time, conditions=conditions)
        return self._share(bounded_pod(Pod(metadata=meta, spec=spec, status=told)))


def _keep_namespace(namespace: Namespace) -> Namespace:
    meta = namespace.metadata
    labels = {name: text for name, text in meta.labels.items() if name == names.QUEUE}
    return Namespace(metadata=msgspec.structs.replace(meta, labels=labels, annotations={}, finalizers=()))


def _lost(error: Exception) -> None:
    log.info("a watch was lost and is begun again", error=str(error))
