"""State of the cluster for its server: local copies of pods, GpuNodes, queues, namespaces and tenants.

A ``Mirror`` lists and watches one kind of object in the API server and keeps a copy of every object.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from calabash.adapters.kube import KubeClient, Mirror, MirrorChange, PodSharing
from calabash.adapters.kube.objects.core import NAMESPACE, POD, Condition, Namespace, Pod, PodStatus
from calabash.adapters.kube.objects.resources import GPU_NODE, QUEUE, TENANT, GpuNode, KubeQueue, KubeTenant
from calabash.kubernetes.object_limits import TEXT_MAX, bounded_annotations, bounded_labels, bounded_pod
from calabash.kubernetes.objects import names
from calabash.kubernetes.objects.tenants import queue_of_namespace
from calabash.kubernetes.planner.state.facts import PodFacts
from calabash.kubernetes.planner.watch.facts_from_objects import may_concern_us, pod_facts
from calabash.kubernetes.skipped_objects import SkippedObjects
from calabash.model.message_codec import decode_text
from calabash.model.messages import Text, in_full
from calabash.model.request import DEFAULT_QUEUE

TOLD_S = 5.0  # limit of a writer's wait until the mirror has its write


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedPod:
    """A pod that asks for devices.

    Args:
        facts: the properties of the pod that the planner reads.
        phase: ``status.phase`` of the pod.
        waits: the condition ``PodScheduled`` with the reason why the pod has no node; None if the pod has a node.
        message: message of ``waits``; "" if there is none.
        begun_at: the time at which the kubelet accepted the pod, as RFC 3339; "" if it has not.
    """

    facts: PodFacts
    phase: str
    waits: Condition | None
    message: Text
    begun_at: str


class ClusterState:
    """Mirrors of the objects that the server reads. Thread-safe.

    Args:
        client: client of the API server.
        changed: called from a mirror's thread after each change of a tenant, a queue or a namespace.
    """

    def __init__(self, client: KubeClient, *, changed: Callable[[], object] = lambda: None) -> None:
        self._changed = changed
        self._pods: dict[str, ServedPod] = {}
        self._told = threading.Condition()
        skipped = SkippedObjects("calabash-server")
        self._pod_mirror: Mirror[Pod] = Mirror(client, POD, on_change=self._pod, observer=skipped, keep=_PodKeeping())
        self._nodes: Mirror[GpuNode] = Mirror(client, GPU_NODE, on_change=self._notify, observer=skipped)
        self._queues: Mirror[KubeQueue] = Mirror(client, QUEUE, on_change=self._other, observer=skipped)
        self._namespaces: Mirror[Namespace] = Mirror(
            client, NAMESPACE, on_change=self._other, observer=skipped, keep=_keep_namespace
        )
        self._tenants: Mirror[KubeTenant] = Mirror(client, TENANT, on_change=self._other, observer=skipped)

    def start(self) -> None:
        for mirror in self._mirrors():
            mirror.start()

    def stop(self) -> None:
        for mirror in self._mirrors():
            mirror.stop()

    def synced(self, timeout_s: float) -> list[str]:
        """Wait until all mirrors have listed their objects, for at most ``timeout_s`` seconds.

        Returns:
            The resources that have not been listed; empty if the state is complete.
        """
        deadline_s = time.monotonic() + timeout_s
        return [m.plural for m in self._mirrors() if not m.synced(max(0.0, deadline_s - time.monotonic()))]

    def pods(self) -> list[ServedPod]:
        """Return all pods that ask for devices, oldest first."""
        found = list(self._pods.values())  # copied at once, because the mirror changes it
        found.sort(key=lambda pod: (pod.facts.created_at_s, pod.facts.uid))
        return found

    def pod(self, uid: str) -> ServedPod | None:
        return self._pods.get(uid)

    def nodes(self) -> list[GpuNode]:
        """Return all GpuNodes by name."""
        return [node for _, node in sorted(self._nodes.snapshot().items())]

    def node(self, name: str) -> GpuNode | None:
        return self._nodes.get(name)

    def queues(self) -> list[KubeQueue]:
        """Return all queues by name."""
        return [queue for _, queue in sorted(self._queues.snapshot().items())]

    def queue(self, name: str) -> KubeQueue | None:
        return self._queues.get(name)

    def tenants(self) -> list[KubeTenant]:
        """Return all tenants by name."""
        return [tenant for _, tenant in sorted(self._tenants.snapshot().items())]

    def tenant(self, name: str) -> KubeTenant | None:
        return self._tenants.get(name)

    def queue_of(self, facts: PodFacts) -> str:
        """Return the name of a pod's queue: the one that the pod names, or else the default queue of its namespace.

        The result is the name of the queue object in the API server.
        """
        own = facts.request.queue if facts.request is not None else ""
        return own or queue_of_namespace(self._namespaces.get(facts.namespace)) or DEFAULT_QUEUE

    def namespaces_in(self, queue: str) -> int:
        """Return how many namespaces have the queue as their default queue."""
        return sum(queue_of_namespace(found) == queue for found in self._namespaces.snapshot().values())

    def wait_for_tenant(
        self, name: str, seen: Callable[[KubeTenant | None], bool], *, timeout_s: float = TOLD_S
    ) -> bool:
        """Wait until ``seen`` returns True for the mirror's copy of the tenant; return False after the timeout.

        The copy is None if the tenant does not exist. A writer calls this so that a reader sees what was just written.
        """
        return self.wait_until(lambda: seen(self._tenants.get(name)), timeout_s=timeout_s)

    def wait_until(self, seen: Callable[[], bool], *, timeout_s: float = TOLD_S) -> bool:
        """Wait until ``seen`` returns True; return False after the timeout.

        ``seen`` is called at once and after each change of a mirror other than that of pods.
        """
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
        conditions = {condition.type: condition for condition in pod.status.conditions}
        waits = conditions.get("PodScheduled")
        waits = waits if waits is not None and waits.status != "True" else None
        self._pods[facts.uid] = ServedPod(
            facts=facts,
            phase=pod.status.phase,
            waits=waits,
            message=_message(waits, conditions.get(names.EXPLANATION)) if waits is not None else "",
            begun_at=pod.status.start_time or "",
        )

    def _other(self, change: MirrorChange[Any]) -> None:
        self._notify(change)
        self._changed()

    def _notify(self, _: MirrorChange[Any]) -> None:
        with self._told:
            self._told.notify_all()


class _PodKeeping:
    """Reduce a pod to the fields that the server reads, and bound their size; None for a pod that it does not serve."""

    def __init__(self) -> None:
        self._share = PodSharing()

    def __call__(self, pod: Pod) -> Pod | None:
        if not may_concern_us(pod):
            return None
        meta, spec, status = pod.metadata, pod.spec, pod.status
        meta = msgspec.structs.replace(
            meta,
            annotations=bounded_annotations(meta.annotations),
            labels=bounded_labels(meta.labels),
            owner_references=meta.owner_references[:1] if meta.controller is None else (meta.controller,),
            finalizers=(),
        )
        if names.REQUEST in meta.annotations:  # the request is read from the annotation
            spec = msgspec.structs.replace(spec, containers=(), init_containers=(), ephemeral_containers=(), volumes=())
        conditions = tuple(
            msgspec.structs.replace(c, message=c.message[:TEXT_MAX])
            for c in status.conditions
            if c.type in {"PodScheduled", names.EXPLANATION}
        )
        told = PodStatus(phase=status.phase, reason=status.reason, start_time=status.start_time, conditions=conditions)
        return self._share(bounded_pod(Pod(metadata=meta, spec=spec, status=told)))


def _message(waits: Condition, explanation: Condition | None) -> Text:
    """Return the message of the condition ``PodScheduled``, with typed names if ``explanation`` has the same message."""
    typed = decode_text(explanation.message) if explanation is not None else ""
    return typed if in_full(typed) == waits.message else waits.message


def _keep_namespace(namespace: Namespace) -> Namespace:
    meta = namespace.metadata
    labels = {name: text for name, text in meta.labels.items() if name == names.QUEUE}
    return Namespace(metadata=msgspec.structs.replace(meta, labels=labels, annotations={}, finalizers=()))
