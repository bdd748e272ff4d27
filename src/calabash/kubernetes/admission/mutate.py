"""Mutation of new pods: normalize the request, set annotations, scheduling gate, scheduler and tolerations. Pure.

Mutation is idempotent. It has to be because an API server calls the webhook again after another webhook changed the
pod, and because pods are created from copies that have old annotations (a backup, ``kubectl get -o yaml``). An existing
annotation is therefore kept if it agrees with the pod and replaced if it does not; its author does not matter.
"""

from __future__ import annotations

from dataclasses import dataclass

from calabash.kubernetes.admission.canonical_form import formed, known_request
from calabash.kubernetes.admission.claim_pods import by_either_api
from calabash.kubernetes.admission.membership import membership, membership_without_devices, with_gang
from calabash.kubernetes.admission.patch import Operation, append, pointer, put, put_map, remove, replace_map
from calabash.kubernetes.admission.scope import (
    NamespaceTerms,
    is_exempt,
    is_unplanned,
    require_planned_claims,
    with_isolation,
    with_queue,
)
from calabash.kubernetes.admission.settings import AdmissionSettings
from calabash.kubernetes.dialects.facts import facts_of
from calabash.kubernetes.dialects.pod import AskingPod
from calabash.kubernetes.dialects.registry import DIALECTS
from calabash.kubernetes.dialects.translate import PlacedContainer, amounts_of, containers_of, translate
from calabash.kubernetes.gang_member import write_member
from calabash.kubernetes.gangs.owned import OwnedMember
from calabash.kubernetes.objects import names
from calabash.kubernetes.objects.allocation_api import AllocationApi
from calabash.kubernetes.pod_request import ContainerRequest, GangSource, PodRequest, write_request
from calabash.model.errors import CalabashError

FOREIGN_SCHEDULERS = frozenset(name for dialect in DIALECTS for name in dialect.schedulers)
DEFAULT_SCHEDULER = "default-scheduler"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """A JSON patch, empty if nothing changes, and warnings for the user."""

    patch: tuple[Operation, ...] = ()
    warnings: tuple[str, ...] = ()


NOTHING = Mutation()


def understood(
    pod: AskingPod, namespace: NamespaceTerms, settings: AdmissionSettings
) -> tuple[PodRequest | None, tuple[str, ...]]:
    """Return the request that the pod makes and warnings for its user; the request is None if it asks for no device.

    Raises:
        CalabashError: the request is invalid.
    """
    known = known_request(pod, counted=settings.second_scheduler)
    asked = by_either_api(pod, translate(pod, settings=settings.dialects, known=known), namespace.claims)
    if asked is None:
        return None, ()
    asked, warning = with_queue(with_isolation(asked, namespace), pod, namespace)
    member, alone = membership(pod, namespace)
    if member is not None and asked.gang_source is GangSource.NONE:
        asked = with_gang(asked, member.member.gang, member.member.size)
    return asked, tuple(filter(None, (warning, alone, _checked_move(asked, pod))))


def _checked_move(asked: PodRequest, pod: AskingPod) -> str:
    """Return a warning if the pod is marked as movable but will not be moved; "" if there is nothing to warn of.

    A movable pod may be evicted so that its replacement starts on another node.

    Raises:
        CalabashError: no controller would recreate the pod after an eviction.
    """
    if not asked.movable:
        return ""
    if not any(owner.controller for owner in pod.metadata.owner_references or []):
        raise CalabashError(
            f'{names.MOVABLE}: "true" on a pod without a controller: a pod is moved by evicting it, and nothing'
            " would create it again",
            hint="remove the annotation, or let a Deployment, StatefulSet or Job make the pod",
        )
    if asked.gang_source is not GangSource.NONE:
        gang = asked.containers[0].request.gang
        return f"{names.MOVABLE} has no effect: members of gang {gang} run together, and are not moved one by one"
    return ""


def mutate(pod: AskingPod, namespace: NamespaceTerms, settings: AdmissionSettings) -> Mutation:
    """Return the patch that brings a new pod into the canonical form.

    Raises:
        CalabashError: the pod is denied.
    """
    if is_exempt(namespace, settings):
        return NOTHING
    if is_unplanned(pod):
        require_planned_claims(pod, namespace)
        return NOTHING
    asked, warnings = understood(pod, namespace, settings)
    if asked is None:
        return _without_devices(pod, namespace, settings)
    if pod.spec.node_name:
        raise CalabashError(
            f"the pod sets spec.nodeName to {pod.spec.node_name}, so its devices cannot be planned",
            hint="remove spec.nodeName and select the node by spec.nodeSelector: {kubernetes.io/hostname: NAME}",
        )
    patch: list[Operation] = []
    places = {place.container.name: place for place in containers_of(pod)}
    for part in asked.containers if asked.allocation_api is AllocationApi.TOKENS else ():
        patch += _resources(places[part.container], part, counted=settings.second_scheduler)
    patch += _annotations(pod, asked, membership(pod, namespace)[0])
    pool = namespace.pools.get(asked.queue or namespace.queue, "")
    patch += _scheduling(pod, settings, settings.scheduler_of(pool))
    return Mutation(patch=tuple(patch), warnings=warnings)


def _resources(place: PlacedContainer, part: ContainerRequest, *, counted: bool) -> list[Operation]:
    resources, path = place.container.resources, f"{place.path}/resources"
    present = resources.limits if resources is not None else None
    amounts = amounts_of(resources)
    limits = formed(present, part.request, counted=counted, amounts=amounts)
    if resources is None:
        return [put(path, {"limits": limits, "requests": limits})]
    requests = formed(resources.requests, part.request, counted=counted, amounts=amounts)
    requests |= {name: limits[name] for name in limits if name in requests and name.startswith(f"{names.GROUP}/")}
    return replace_map(f"{path}/limits", present, limits) + replace_map(
        f"{path}/requests", resources.requests, requests
    )


def _annotations(pod: AskingPod, asked: PodRequest, member: OwnedMember | None) -> list[Operation]:
    path, present = "/metadata/annotations", pod.metadata.annotations
    wanted = {names.REQUEST: write_request(asked), names.DIALECT: asked.dialect}
    first = asked.containers[0].request
    if member is not None and member.member.gang == first.gang:
        wanted[names.GANG_MEMBER] = write_member(member.member)
    unwanted = [name for name in (names.PLAN, names.GANG_MEMBER) if name in pod.annotations and name not in wanted]
    return put_map(path, present, wanted) + [remove(path + pointer(name)) for name in unwanted]


def _without_devices(pod: AskingPod, namespace: NamespaceTerms, settings: AdmissionSettings) -> Mutation:
    """Return the patch for a pod that asks for no device.

    A member of its owner's gang gets the annotation of its membership, the gate and the scheduler of the members with
    devices. Of other pods, an annotation of an earlier review is removed.
    """
    member, warning = membership_without_devices(pod, namespace)
    warnings = (warning,) if warning else ()
    path = "/metadata/annotations"
    if member is None:
        stale = (remove(path + pointer(names.GANG_MEMBER)),) if names.GANG_MEMBER in pod.annotations else ()
        return Mutation(patch=stale, warnings=warnings)
    patch = put_map(path, pod.metadata.annotations, {names.GANG_MEMBER: write_member(member)})
    queue = facts_of(pod).queue
    pool = namespace.pools.get(queue if queue and namespace.allows(queue) else namespace.queue, "")
    return Mutation(patch=(*patch, *_held(pod, settings, settings.scheduler_of(pool))), warnings=warnings)


def _scheduling(pod: AskingPod, settings: AdmissionSettings, scheduler: str) -> list[Operation]:
    spec, patch = pod.spec, _held(pod, settings, scheduler)
    if all(toleration.key != names.DEVICE_TAINT for toleration in spec.tolerations or []):
        tolerated = {"key": names.DEVICE_TAINT, "operator": "Exists"}
        patch.append(append("/spec/tolerations", spec.tolerations, tolerated))
    return patch


def _held(pod: AskingPod, settings: AdmissionSettings, scheduler: str) -> list[Operation]:
    """Return the operations that set the scheduler and the gate of the planner."""
    spec = pod.spec
    patch: list[Operation] = []
    if settings.second_scheduler and spec.scheduler_name != scheduler:
        patch.append(put("/spec/schedulerName", scheduler))
    elif not settings.second_scheduler and spec.scheduler_name in FOREIGN_SCHEDULERS:
        patch.append(put("/spec/schedulerName", DEFAULT_SCHEDULER))
    if all(gate.name != names.PLAN_GATE for gate in spec.scheduling_gates or []):
        patch.append(append("/spec/schedulingGates", spec.scheduling_gates, {"name": names.PLAN_GATE}))
    return patch
