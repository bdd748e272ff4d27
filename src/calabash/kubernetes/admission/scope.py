"""Scope of admission: the pods that it does not review, and the terms that a namespace sets for its pods. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from calabash.kubernetes.admission.settings import AdmissionSettings
from calabash.kubernetes.claims.device_names import EXTENDED
from calabash.kubernetes.dialects.facts import facts_of
from calabash.kubernetes.dialects.pod import AskingPod
from calabash.kubernetes.dialects.translate import with_least_isolation
from calabash.kubernetes.gangs.owned import OwnedGangs
from calabash.kubernetes.objects import names
from calabash.kubernetes.pod_request import PodRequest, isolation_named
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import DEFAULT_QUEUE, GpuRequest

ClaimsAsked = Mapping[str, GpuRequest | CalabashError | None]
_MIRROR = "kubernetes.io/config.mirror"


class OwnerResult(StrEnum):
    """Result of a lookup, as counted in the metrics.

    GANG: an owner forms gangs. NONE: no owner forms one, or it does not exist any more. INVALID: the owner's fields are
    invalid. FORBIDDEN: the API server forbids admission to read an owner. UNANSWERED: the API server did not answer.
    """

    GANG = "gang"
    NONE = "none"
    INVALID = "invalid"
    FORBIDDEN = "forbidden"
    UNANSWERED = "unanswered"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerAnswer:
    """Answer of a lookup.

    Args:
        gangs: the gangs of the owner; None unless the result is GANG.
        warning: text for the user whose pod starts alone because of the result; "" for none.
    """

    result: OwnerResult
    gangs: OwnedGangs | None = None
    warning: str = ""


NO_OWNER = OwnerAnswer(result=OwnerResult.NONE)


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceTerms:
    """Terms that hold for the pods of a namespace, and the cluster state that a review of such a pod needs.

    A namespace that admission does not know has the default values.

    Args:
        name: name of the namespace.
        off: True if pods of the namespace are exempt.
        isolation: least isolation level of its pods; "" for none.
        queue: the default queue of its pods.
        queues: other queues that its pods may name. ``*`` allows all, except queues of a tenant other than that of
            ``queue``.
        tenants: the tenant of each queue that has one.
        claims: requests of the reviewed pod's claims, by the names that claims have in the pod: a request, None for a
            claim that asks for no device of Calabash, or an error if the claim's devices cannot be counted. Claims that
            do not exist are missing. The key ``EXTENDED`` has the request that containers make by extended resource
            names of device classes. ``claims`` is None if no claim was read for this review.
        pools: the pool of each queue that has one. A pool is a group of nodes and queues that may have its own planner.
        owner: answer about the owner of the reviewed pod. None if no owner was looked up.
    """

    name: str
    off: bool = False
    isolation: str = ""
    queue: str = DEFAULT_QUEUE
    queues: frozenset[str] = frozenset()
    tenants: Mapping[str, str] = field(default_factory=dict)
    claims: ClaimsAsked | None = None
    pools: Mapping[str, str] = field(default_factory=dict)
    owner: OwnerAnswer | None = None

    def allows(self, queue: str) -> bool:
        """Return True if pods of the namespace may use the queue."""
        if queue == self.queue:
            return True
        tenant = self.tenants.get(queue, "")
        if tenant and tenant != self.tenants.get(self.queue, ""):
            return False
        return queue in self.queues or "*" in self.queues


def namespace_terms(name: str, labels: Mapping[str, str], annotations: Mapping[str, str]) -> NamespaceTerms:
    """Read the terms of a namespace from its metadata.

    Names in the annotation that are not names of queues have no effect.
    """
    return NamespaceTerms(
        name=name,
        off=labels.get(names.ADMISSION) == "off",
        isolation=labels.get(names.ISOLATION, ""),
        queue=labels.get(names.QUEUE) or DEFAULT_QUEUE,
        queues=frozenset(word.strip() for word in annotations.get(names.QUEUES, "").split(",") if word.strip()),
    )


def left_alone(pod: AskingPod, namespace: NamespaceTerms, settings: AdmissionSettings) -> bool:
    """Return True if admission leaves the pod unchanged: an exempt namespace, a static pod or a DaemonSet pod."""
    return is_exempt(namespace, settings) or is_unplanned(pod)


def is_exempt(namespace: NamespaceTerms, settings: AdmissionSettings) -> bool:
    """Return True if admission does not review pods of the namespace.

    Exempt are the product's own namespace, the exempt namespaces of the settings and those labelled "admission off".
    """
    return namespace.off or namespace.name == settings.namespace or namespace.name in settings.exempt_namespaces


def is_unplanned(pod: AskingPod) -> bool:
    """Return True if the pod is of a kind that is never planned: a static pod's mirror pod, or a pod of a DaemonSet."""
    if _MIRROR in pod.annotations:
        return True
    return any(owner.controller and owner.kind == "DaemonSet" for owner in pod.metadata.owner_references or [])


def require_planned_claims(pod: AskingPod, namespace: NamespaceTerms) -> None:
    """Refuse an unplanned pod that asks for devices by a claim or by the name of a device class.

    kube-scheduler would allocate devices for the claim without checking the limit of any queue. A claim that does not
    exist yet is refused as well because it may ask for devices.

    Raises:
        CalabashError: NOT_PERMITTED if the pod has such a claim.
    """
    if namespace.claims is None:
        return
    if namespace.claims.get(EXTENDED) is not None:
        raise CalabashError(
            "the pod asks for devices by the name of a device class and belongs to a DaemonSet or is a static pod: such pods"
            " are not planned, so no queue limit would apply",
            reason=Reason.NOT_PERMITTED,
            hint=f"let a Deployment make the pod, or have an administrator label the namespace {names.ADMISSION}=off",
        )
    for claim in pod.spec.resource_claims or []:
        if claim.name not in namespace.claims:
            raise CalabashError(
                f"the request of claim {claim.name[:64]} is not known, and the pod belongs to a DaemonSet or is a static"
                " pod: such pods are not planned, so no queue limit would apply to the claim",
                reason=Reason.NOT_PERMITTED,
                hint="create the claim or its template before the pod; the controller tries again",
            )
        if namespace.claims[claim.name] is not None:
            raise CalabashError(
                f"claim {claim.name[:64]} asks for devices, and the pod belongs to a DaemonSet or is a static pod: such"
                " pods are not planned, so no queue limit would apply to the claim",
                reason=Reason.NOT_PERMITTED,
                hint="ask for nvidia.com/gpu in the container's limits, let a Deployment make the pod, or have an administrator"
                f" label the namespace {names.ADMISSION}=off",
            )


def with_isolation(asked: PodRequest, namespace: NamespaceTerms) -> PodRequest:
    """Return the request with the isolation level of every container raised to the least level of the namespace.

    Raises:
        CalabashError: the request of a container is impossible at that level, or the level is unknown.
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
    """Return the request with a queue that the namespace allows, and a warning ("" for none).

    A label or annotation of another system may name a queue that the namespace does not allow. The namespace's default
    queue then replaces it, and the warning says so.

    Raises:
        CalabashError: NOT_PERMITTED if Calabash's own label or annotation names a queue that is not allowed.
    """
    if not asked.queue or namespace.allows(asked.queue):
        return asked, ""
    if facts_of(pod).queue_is_ours:
        allowed = ", ".join(sorted({namespace.queue, *namespace.queues}))
        raise CalabashError(
            f"queue {asked.queue} is not allowed in namespace {namespace.name}, whose pods may use: {allowed}",
            reason=Reason.NOT_PERMITTED,
            hint=f"remove the queue, or have an administrator add it to the namespace's annotation {names.QUEUES}",
        )
    containers = tuple(replace(c, request=replace(c.request, queue=DEFAULT_QUEUE)) for c in asked.containers)
    warning = f"queue {asked.queue} is not allowed in this namespace: the pod waits in {namespace.queue}"
    return replace(asked, queue="", containers=containers), warning
