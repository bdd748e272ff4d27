"""Membership of a reviewed pod in the gang of its owner. Pure."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from calabash.kubernetes.admission.scope import NamespaceTerms
from calabash.kubernetes.dialects.facts import facts_of
from calabash.kubernetes.dialects.pod import AskingPod
from calabash.kubernetes.gang_member import GangMember
from calabash.kubernetes.gangs.owned import OwnedMember, member_in
from calabash.kubernetes.objects import names
from calabash.kubernetes.pod_request import GangSource, PodRequest, read_request
from calabash.model.errors import CalabashError


def states_gang(pod: AskingPod) -> bool:
    """Return True if the pod states its gang itself, or is excluded from the gang of its owner."""
    said = pod.annotations
    return bool(said.get(names.GANG) or said.get(names.GANG_SIZE)) or said.get(names.GANG_OF_OWNER) == "false"


def membership(pod: AskingPod, namespace: NamespaceTerms) -> tuple[OwnedMember | None, str]:
    """Return the membership of the pod, None if its owner forms no gang, and a warning for the user ("" for none)."""
    answer = namespace.owner
    if answer is None or answer.gangs is None:
        return None, answer.warning if answer is not None else ""
    found = member_in(answer.gangs, {"metadata": {"labels": pod.labels, "annotations": pod.annotations}})
    return found, _unknown_levels(found.unknown_levels) if found is not None else ""


def _unknown_levels(levels: tuple[str, ...]) -> str:
    if not levels:
        return ""
    return (
        f"the owner of the pod requests the topology level {levels[0][:100]}, which has no effect, because it is not a level"
        " of this cluster; hint: an administrator adds it to the chart's value topology.levels"
    )


def membership_without_devices(pod: AskingPod, namespace: NamespaceTerms) -> tuple[GangMember | None, str]:
    """Return the membership of a pod without devices that starts with members that request devices, and a warning.

    Returns None for other pods: if no member that starts with it requests devices, the planner would never plan the gang.
    A pod that names a PodGroup belongs to the gang of that group.
    """
    found, warning = membership(pod, namespace)
    if found is None or not found.has_devices or pod.spec.node_name:
        return None, warning
    try:
        facts = facts_of(pod)
    except CalabashError:  # an annotation of the product that no device depends on
        return None, ""
    if facts.gang_source in (GangSource.NONE, GangSource.ANNOTATION):
        return found.member if not facts.gang else None, ""
    return msgspec.structs.replace(found.member, gang=facts.gang, source=facts.gang_source, size=1), ""


def with_gang(asked: PodRequest, gang: str, size: int) -> PodRequest:
    """Return the request with a gang of which ``size`` members start together."""
    parts = tuple(replace(part, request=replace(part.request, gang=gang, gang_size=size)) for part in asked.containers)
    return replace(asked, containers=parts, gang_source=GangSource.ANNOTATION)


def with_written_gang(asked: PodRequest, pod: AskingPod) -> PodRequest:
    """Return the request with the gang that the mutating webhook has written, if the pod states none.

    The owner is not looked up again: the answer may differ by now, and a user who writes another name here gets what the
    annotation ``calabash.dev/gang`` gives as well, a gang within the namespace.
    """
    if asked.gang_source is not GangSource.NONE or pod.controller is None or names.REQUEST not in pod.annotations:
        return asked
    try:
        written = read_request(pod.annotations[names.REQUEST])
    except CalabashError:
        return asked
    if written.gang_source is not GangSource.ANNOTATION:
        return asked
    first = written.containers[0].request
    return with_gang(asked, first.gang, first.gang_size)
