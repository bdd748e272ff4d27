"""Terms of a pod that hold for all its containers: queue, gang, priority and Calabash's annotations."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from calabash.kubernetes.dialects.pod import AskingPod
from calabash.kubernetes.dialects.protocol import annotation_text, words
from calabash.kubernetes.dialects.registry import DIALECTS
from calabash.kubernetes.objects import names
from calabash.kubernetes.objects.quantity import mib_of, parse_quantity
from calabash.kubernetes.pod_request import GangSource, isolation_named
from calabash.model.compute import reapply_compute_defaults, with_policy
from calabash.model.errors import CalabashError
from calabash.model.names import NAME_HINT, NAME_PATTERN
from calabash.model.request import DEFAULT_QUEUE, DEFAULT_TENANT, ComputePolicy, GpuRequest, ModeName
from calabash.model.units import parse_duration_s
from calabash.sharing.registry import mode_named

VOLCANO_GROUP = "scheduling.k8s.io/group-name"
COSCHEDULING_GROUPS = ("scheduling.x-k8s.io/pod-group", "pod-group.scheduling.sigs.k8s.io")
_TEXT_MAX = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class PodTerms:
    """Queue, gang, priority and run time that a pod asks for, whatever the dialect of its devices.

    Args:
        tenant: the namespace of the pod.
        queue: name of the queue; "" for the default queue of the namespace.
        queue_is_ours: True if the queue was named by Calabash's own label or annotation, not by another system's.
        gang: name of the gang; "" if the pod belongs to none.
        gang_source: source of the number of members that the gang needs to start.
        gang_size: members that the gang needs to start; 1 if the pod does not state the size.
        priority: ``spec.priority`` of the pod.
        run_time_s: expected run time in seconds; 0 if the pod does not state it.
        movable: True if the pod may be evicted so that its replacement starts on another node.
    """

    tenant: str
    queue: str
    queue_is_ours: bool
    gang: str
    gang_source: GangSource
    gang_size: int
    priority: int
    run_time_s: float
    movable: bool


def facts_of(pod: AskingPod) -> PodTerms:
    """Read the ``PodTerms`` of a pod.

    Raises:
        CalabashError: an annotation is invalid; the message names it.
    """
    gang, source, size = _gang(pod)
    queue, ours = _queue(pod)
    priority = pod.spec.priority or 0
    if not -(2**31) <= priority < 2**31:
        raise CalabashError(f"priority {priority} is out of range", hint="use a PriorityClass")
    run_time = _annotation(pod, names.RUN_TIME)
    return PodTerms(
        tenant=_name(pod.metadata.namespace or DEFAULT_TENANT, what="namespace"),
        queue=queue,
        queue_is_ours=ours,
        gang=gang,
        gang_source=source,
        gang_size=size,
        priority=priority,
        run_time_s=parse_duration_s(run_time) if run_time else 0.0,
        movable=_boolean(_annotation(pod, names.MOVABLE), what=names.MOVABLE),
    )


def with_facts(request: GpuRequest, facts: PodTerms, pod: AskingPod) -> GpuRequest:
    """Return the request completed with the terms and annotations of the pod.

    Raises:
        CalabashError: an annotation is invalid.
    """
    mode, policy, isolation, models, spill = (
        _annotation(pod, name) for name in (names.MODE, names.POLICY, names.ISOLATION, names.MODELS, names.SPILL)
    )
    named = _policy(policy) if policy else None
    complete = replace(
        request,
        mode=mode_named(mode).name if mode else ModeName(request.mode),
        spill_mib=_spill(spill) if spill else request.spill_mib,
        isolation=isolation_named(isolation) if isolation else request.isolation,
        selector=replace(request.selector, models=words(models)) if models else request.selector,
        priority=facts.priority,
        tenant=facts.tenant,
        queue=facts.queue or DEFAULT_QUEUE,
        gang=facts.gang,
        gang_size=facts.gang_size,
        run_time_s=facts.run_time_s,
    )
    return with_policy(complete, named) if named is not None else reapply_compute_defaults(complete)


def _gang(pod: AskingPod) -> tuple[str, GangSource, int]:
    gang = _annotation(pod, names.GANG)
    size = _annotation(pod, names.GANG_SIZE)
    if gang:
        if not size:
            raise CalabashError(
                f"{names.GANG} {gang!r} without {names.GANG_SIZE}",
                hint="set it to the number of members that the gang needs to start",
            )
        return _name(gang, what=names.GANG), GangSource.ANNOTATION, _size(size)
    if size:
        raise CalabashError(
            f"{names.GANG_SIZE} {size!r} without {names.GANG}", hint="set {names.GANG} to the name of the gang"
        )
    group = pod.spec.scheduling_group
    found = [
        (group.pod_group_name if group else None, GangSource.WORKLOAD),
        *((pod.labels.get(label), GangSource.COSCHEDULING) for label in COSCHEDULING_GROUPS),
        (pod.annotations.get(VOLCANO_GROUP), GangSource.VOLCANO),
    ]
    for name, source in found:
        if name:
            return _name(name, what=f"{source} PodGroup"), source, 1
    return "", GangSource.NONE, 1


def _queue(pod: AskingPod) -> tuple[str, bool]:
    ours = pod.labels.get(names.QUEUE) or pod.annotations.get(names.QUEUE)
    if ours:
        return _name(ours, what=names.QUEUE), True
    named = (pod.labels.get(word) or pod.annotations.get(word) for dialect in DIALECTS for word in dialect.queues)
    theirs = next((queue for queue in named if queue), "")
    return (_name(theirs, what="queue"), False) if theirs else ("", False)


def _annotation(pod: AskingPod, name: str) -> str:
    text = annotation_text(pod, name)
    if name != names.MODELS and len(text) > _TEXT_MAX:
        raise CalabashError(f"{name} has {len(text)} characters", hint=f"at most {_TEXT_MAX}")
    return text


def _name(text: str, *, what: str) -> str:
    if re.match(NAME_PATTERN, text) is None:
        raise CalabashError(f"{what} {text[:_TEXT_MAX]!r} is not usable", hint=NAME_HINT)
    return text


def _size(text: str) -> int:
    if re.fullmatch(r"[0-9]{1,9}", text, re.ASCII) is None:
        raise CalabashError(
            f"{names.GANG_SIZE} {text!r} is not a number",
            hint="write the number of members that the gang needs to start",
        )
    return int(text)


def _spill(text: str) -> int:
    return mib_of(parse_quantity(text, what=names.SPILL), what=names.SPILL)


def _policy(word: str) -> ComputePolicy:
    try:
        return ComputePolicy(word)
    except ValueError:
        known = ", ".join(ComputePolicy)
        raise CalabashError(f"{names.POLICY} {word!r} is not known", hint=f"one of: {known}") from None


def _boolean(word: str, *, what: str) -> bool:
    if word not in ("", "true", "false"):
        raise CalabashError(f"{what} {word!r} is neither true nor false", hint='write "true" or "false"')
    return word == "true"
