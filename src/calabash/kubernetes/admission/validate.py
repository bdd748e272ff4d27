"""What is refused: a pod that could never run, and what only the product may write. Pure.

Annotations of the product are the product's: a user who could write a plan would take devices that were given to others.
"""

from __future__ import annotations

from calabash.kubernetes.admission.claim_pods import same_request
from calabash.kubernetes.admission.mutate import understood
from calabash.kubernetes.admission.scope import NamespaceTerms, left_alone
from calabash.kubernetes.admission.settings import AdmissionSettings
from calabash.kubernetes.dialects.pod import AskingPod
from calabash.kubernetes.dialects.registry import is_ours_to_translate
from calabash.kubernetes.objects import names
from calabash.kubernetes.pod_request import write_request
from calabash.model.errors import CalabashError, Reason

PROTECTED = (names.PLAN, names.REQUEST, names.DIALECT)


def validate(
    old: AskingPod | None, new: AskingPod, user: str, namespace: NamespaceTerms, settings: AdmissionSettings
) -> None:
    """Look at a pod that is created (``old`` None) or changed by ``user``. Raises CalabashError that denies it."""
    if old is not None:
        _ephemeral(old, new)
        if user not in settings.trusted_users:
            _changed(old, new, user)
    elif left_alone(new, namespace, settings):
        _untouched(new, namespace)
    else:
        _created(new, namespace, settings)


def _untouched(pod: AskingPod, namespace: NamespaceTerms) -> None:
    """Where nobody reads pods, nobody's plan is one: an agent would keep it."""
    for name in PROTECTED:
        if name in pod.annotations:
            raise _not_theirs(
                f"annotation {name} stands in a pod that is left alone in namespace {namespace.name}", "leave it out"
            )


def _created(pod: AskingPod, namespace: NamespaceTerms, settings: AdmissionSettings) -> None:
    if names.PLAN in pod.annotations:
        raise _not_theirs(
            f"annotation {names.PLAN} stands in a pod that is created", "leave it out: the planner writes it"
        )
    asked, _ = understood(pod, namespace, settings)
    wanted = {names.REQUEST: write_request(asked), names.DIALECT: asked.dialect} if asked is not None else {}
    for name in (names.REQUEST, names.DIALECT):
        if name in pod.annotations and not same_request(pod.annotations[name], wanted.get(name)):
            raise _not_theirs(
                f"annotation {name} does not say what the containers of the pod ask for",
                "leave it out: it is written from the containers' resources",
            )


def _ephemeral(old: AskingPod, new: AskingPod) -> None:
    before = {container.name for container in old.spec.ephemeral_containers or []}
    for container in new.spec.ephemeral_containers or []:
        resources = container.resources
        asked = sorted({*(resources.limits or {}), *(resources.requests or {})}) if resources is not None else []
        devices = [name for name in asked if is_ours_to_translate(name)]
        if devices and container.name not in before:
            raise CalabashError(
                f"ephemeral container {container.name} asks for {', '.join(devices)}: devices are given when a pod is planned",
                hint="leave it out; to look at the devices of a running container, use kubectl exec",
            )


def _changed(old: AskingPod, new: AskingPod, user: str) -> None:
    for name in PROTECTED:
        if old.annotations.get(name) != new.annotations.get(name):
            raise _not_theirs(
                f"annotation {name} is not for {user or 'anybody'} to change", "delete the pod to plan anew"
            )
    if _gated(old) and not _gated(new):
        raise _not_theirs(
            f"scheduling gate {names.PLAN_GATE} is not for {user or 'anybody'} to remove: the pod has no plan",
            "`kubectl describe pod` says why it waits; delete the pod to give up",
        )


def _gated(pod: AskingPod) -> bool:
    return any(gate.name == names.PLAN_GATE for gate in pod.spec.scheduling_gates or [])


def _not_theirs(message: str, hint: str) -> CalabashError:
    return CalabashError(message, reason=Reason.NOT_PERMITTED, hint=hint)
