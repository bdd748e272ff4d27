"""Validation of pods: refuse pods that could never run, and users' writes to the product's own annotations. Pure.

The annotations are protected because node agents trust them: a user who could write a plan could take devices that are
allocated to other pods.
"""

from __future__ import annotations

from calabash.kubernetes.admission.claim_pods import same_request
from calabash.kubernetes.admission.membership import with_written_gang
from calabash.kubernetes.admission.mutate import understood
from calabash.kubernetes.admission.scope import NamespaceTerms, left_alone
from calabash.kubernetes.admission.settings import AdmissionSettings
from calabash.kubernetes.dialects.pod import AskingPod
from calabash.kubernetes.dialects.registry import is_ours_to_translate
from calabash.kubernetes.objects import names
from calabash.kubernetes.pod_request import write_request
from calabash.model.errors import CalabashError, Reason

PROTECTED = (names.PLAN, names.REQUEST, names.DIALECT, names.GANG_MEMBER)


def validate(
    old: AskingPod | None, new: AskingPod, user: str, namespace: NamespaceTerms, settings: AdmissionSettings
) -> None:
    """Check a pod that is created (``old`` is None) or changed by ``user``.

    Raises:
        CalabashError: the pod is denied.
    """
    if old is not None:
        _ephemeral(old, new)
        if user not in settings.trusted_users:
            _changed(old, new, user)
    elif left_alone(new, namespace, settings):
        _untouched(new, namespace)
    else:
        _created(new, namespace, settings)


def _untouched(pod: AskingPod, namespace: NamespaceTerms) -> None:
    """Refuse the product's annotations in a pod that admission does not review: a node agent would trust them."""
    for name in PROTECTED:
        if name in pod.annotations:
            raise _not_theirs(
                f"annotation {name} is set on a pod that admission does not review in namespace {namespace.name}",
                "remove it",
            )


def _created(pod: AskingPod, namespace: NamespaceTerms, settings: AdmissionSettings) -> None:
    if names.PLAN in pod.annotations:
        raise _not_theirs(f"annotation {names.PLAN} is set on a new pod", "remove it: the planner writes it")
    asked, _ = understood(pod, namespace, settings)
    asked = with_written_gang(asked, pod) if asked is not None else None
    wanted = {names.REQUEST: write_request(asked), names.DIALECT: asked.dialect} if asked is not None else {}
    for name in (names.REQUEST, names.DIALECT):
        if name in pod.annotations and not same_request(pod.annotations[name], wanted.get(name)):
            raise _not_theirs(
                f"annotation {name} does not agree with the resources of the pod's containers",
                "remove it: admission writes it from the containers' resources",
            )


def _ephemeral(old: AskingPod, new: AskingPod) -> None:
    before = {container.name for container in old.spec.ephemeral_containers or []}
    for container in new.spec.ephemeral_containers or []:
        resources = container.resources
        asked = sorted({*(resources.limits or {}), *(resources.requests or {})}) if resources is not None else []
        devices = [name for name in asked if is_ours_to_translate(name)]
        if devices and container.name not in before:
            raise CalabashError(
                f"ephemeral container {container.name} asks for {', '.join(devices)}: devices are given to planned"
                " containers only",
                hint="remove it; use kubectl exec to inspect the devices of a running container",
            )


def _changed(old: AskingPod, new: AskingPod, user: str) -> None:
    for name in PROTECTED:
        if old.annotations.get(name) != new.annotations.get(name):
            raise _not_theirs(
                f"annotation {name} must not be changed by {user or 'any user'}", "delete the pod to plan it again"
            )
    if _gated(old) and not _gated(new):
        raise _not_theirs(
            f"scheduling gate {names.PLAN_GATE} must not be removed by {user or 'any user'}: the pod has no plan",
            "`kubectl describe pod` shows why it waits; delete the pod to withdraw it",
        )


def _gated(pod: AskingPod) -> bool:
    return any(gate.name == names.PLAN_GATE for gate in pod.spec.scheduling_gates or [])


def _not_theirs(message: str, hint: str) -> CalabashError:
    return CalabashError(message, reason=Reason.NOT_PERMITTED, hint=hint)
