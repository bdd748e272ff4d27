"""Whose pods are looked at, and what a namespace says about them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from calabash.kubernetes.admission.settings import AdmissionSettings
from calabash.kubernetes.claims.device_names import EXTENDED
from calabash.kubernetes.dialects.facts import facts_of
from calabash.kubernetes.dialects.pod import AskingPod
from calabash.kubernetes.dialects.translate import with_least_isolation
from calabash.kubernetes.objects import names
from calabash.kubernetes.pod_request import PodRequest, isolation_named
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import DEFAULT_QUEUE, GpuRequest

ClaimsAsked = Mapping[str, GpuRequest | CalabashError | None]
_MIRROR = "kubernetes.io/config.mirror"


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceTerms:
    """What a namespace says: whether its pods are left alone, which queue is theirs, which others they may name.

    ``isolation`` is the least level of its pods, "" where it says none. ``queues`` with ``*`` allows all, but never those of a
    tenant that the namespace is not of: ``tenants`` are the tenants that have queues, by queue. A namespace that nobody has
    seen says nothing. ``claims`` is what the pod's claims ask of our driver, by the names that the pod has for them: a request,
    None for nothing, an error for what cannot be counted; one that is not there yet is not in it. ``EXTENDED`` in it is what
    containers ask for by names of device classes. Where nobody has looked, ``claims`` is None. ``pools`` are the pools in
    which the pods of queues run, by queue, as far as they are of one.
    """

    name: str
    off: bool = False
    isolation: str = ""
    queue: str = DEFAULT_QUEUE
    queues: frozenset[str] = frozenset()
    tenants: Mapping[str, str] = field(default_factory=dict)
    claims: ClaimsAsked | None = None
    pools: Mapping[str, str] = field(default_factory=dict)

    def allows(self, queue: str) -> bool:
        """Whether its pods may wait in that queue."""
        if queue == self.queue:
            return True
        tenant = self.tenants.get(queue, "")
        if tenant and tenant != self.tenants.get(self.queue, ""):
            return False
        return queue in self.queues or "*" in self.queues


def namespace_terms(name: str, labels: Mapping[str, str], annotations: Mapping[str, str]) -> NamespaceTerms:
    """Read from its metadata; what is not understood allows nothing."""
    return NamespaceTerms(
        name=name,
        off=labels.get(names.ADMISSION) == "off",
        isolation=labels.get(names.ISOLATION, ""),
        queue=labels.get(names.QUEUE) or DEFAULT_QUEUE,
        queues=frozenset(word.strip() for word in annotations.get(names.QUEUES, "").split(",") if word.strip()),
    )


def left_alone(pod: AskingPod, namespace: NamespaceTerms, settings: AdmissionSettings) -> bool:
    """Pods of the system, of the product itself, of namespaces that are off, of a kubelet's own files, of DaemonSets."""
    return is_exempt(namespace, settings) or is_unplanned(pod)


def is_exempt(namespace: NamespaceTerms, settings: AdmissionSettings) -> bool:
    """Return True for namespaces of the system, of the product itself, and those that are off."""
    return namespace.off or namespace.name == settings.namespace or namespace.name in settings.exempt_namespaces


def is_unplanned(pod: AskingPod) -> bool:
    """Return True for pods that nobody holds back until they are planned: of a kubelet's own files, and of DaemonSets."""
    if _MIRROR in pod.annotations:
        return True
    return any(owner.controller and owner.kind == "DaemonSet" for owner in pod.metadata.owner_references or [])


def require_planned_claims(pod: AskingPod, namespace: NamespaceTerms) -> None:
    """Raise CalabashError(NOT_PERMITTED) if an unplanned pod names a claim that asks for devices, or may do so, or asks for
    devices by the name of a device class.

    kube-scheduler would allocate its devices without a look at the limit of its queue.
    """
    if namespace.claims is None:
        return
    if namespace.claims.get(EXTENDED) is not None:
        raise CalabashError(
            "the pod asks for devices by the name of a device class, and is of a DaemonSet or of a kubelet's own files: nobody"
            " plans it, so that no limit would hold for them",
            reason=Reason.NOT_PERMITTED,
            hint=f"let a Deployment make the pod, or have an administrator label the namespace {names.ADMISSION}=off",
        )
    for claim in pod.spec.resource_claims or []:
        if claim.name not in namespace.claims:
            raise CalabashError(
                f"what claim {claim.name[:64]} asks for is not known, and the pod is of a DaemonSet or of a kubelet's own"
                " files: nobody plans it, so that no limit would hold for the claim",
                reason=Reason.NOT_PERMITTED,
                hint="make the claim, or its template, before the pod; it is tried again",
            )
        if namespace.claims[claim.name] is not None:
            raise CalabashError(
                f"claim {claim.name[:64]} asks for devices, and the pod is of a DaemonSet or of a kubelet's own files: nobody"
                " plans it, so that no limit would hold for the claim",
                reason=Reason.NOT_PERMITTED,
                hint="ask for nvidia.com/gpu in the container's limits, let a Deployment make the pod, or have an administrator"
                f" label the namespace {names.ADMISSION}=off",
            )


def with_isolation(asked: PodRequest, namespace: NamespaceTerms) -> PodRequest:
    """The request at the least level of its namespace, or at its own where that is higher.

    Raises CalabashError when what a container asks cannot be had at that level, or the namespace's word is not known.
    """
    if not namespace.isolation:
        return asked
    try:
        return with_least_isolation(asked, isolation_named(namespace.isolation))
    except CalabashError as error:
        raise CalabashError(
            f"namespace {namespace.name} has the label {names.ISOLATION}={namespace.isolation[:64]}: {error.message}",
            reason=error.reason,
            hint=error.hint,
        ) from error


def with_queue(asked: PodRequest, pod: AskingPod, namespace: NamespaceTerms) -> tuple[PodRequest, str]:
    """The request with a queue that the namespace allows, and a warning where another system's queue was left out.

    Raises CalabashError(NOT_PERMITTED) when the pod names one of ours that it may not use.
    """
    if not asked.queue or namespace.allows(asked.queue):
        return asked, ""
    if facts_of(pod).queue_is_ours:
        allowed = ", ".join(sorted({namespace.queue, *namespace.queues}))
        raise CalabashError(
            f"queue {asked.queue} is not for namespace {namespace.name}, which may use: {allowed}",
            reason=Reason.NOT_PERMITTED,
            hint=f"leave the queue out, or have an administrator add it to the namespace's annotation {names.QUEUES}",
        )
    containers = tuple(replace(c, request=replace(c.request, queue=DEFAULT_QUEUE)) for c in asked.containers)
    warning = f"queue {asked.queue} is not for this namespace: the pod waits in {namespace.queue}"
    return replace(asked, queue="", containers=containers), warning
