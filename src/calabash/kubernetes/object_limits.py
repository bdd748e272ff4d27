"""Limits on the memory that mirrors use for objects that users write.

A mirror is a program's copy of all objects of one kind. An object can have 1.5 MiB, of which annotations can have 256
KiB, and a user can create many objects. A mirror therefore keeps only the annotations that the program reads, each up
to a limited size, and a limited number of other bytes. If a pod or a claim exceeds the limit, its request is replaced
by a text that cannot be decoded. The pod then waits, and a condition says why.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from calabash.adapters.kube.objects.core import (
    Container,
    ContainerResources,
    Pod,
    PodSchedulingGate,
    PodSpec,
    PodStatus,
)
from calabash.adapters.kube.objects.meta import ObjectMeta
from calabash.kubernetes.dialects.facts import COSCHEDULING_GROUPS, VOLCANO_GROUP
from calabash.kubernetes.dialects.protocol import ANNOTATION_CHARACTERS_MAX
from calabash.kubernetes.dialects.registry import DIALECTS
from calabash.kubernetes.gang_member import MEMBER_BYTES_MAX
from calabash.kubernetes.objects import names
from calabash.kubernetes.objects.plan import PLAN_BYTES_MAX
from calabash.kubernetes.pod_request import REQUEST_BYTES_MAX, oversized

REST_BYTES_MAX = 32 << 10  # limit of the spec and of the status of a pod, each, and of a claim
LABEL_BYTES_MAX = 8 << 10
TEXT_MAX = 1024

# Annotations that contain requests if admission has written none.
_ASKING = frozenset(
    {
        names.MODE,
        names.POLICY,
        names.ISOLATION,
        names.MODELS,
        names.SPILL,
        names.GANG,
        names.GANG_SIZE,
        names.RUN_TIME,
        names.MOVABLE,
        names.QUEUE,
        VOLCANO_GROUP,
        *(name for dialect in DIALECTS for name in (*dialect.annotations, *dialect.asked_by, *dialect.queues)),
    }
)
_MAX = {names.REQUEST: REQUEST_BYTES_MAX, names.PLAN: PLAN_BYTES_MAX, names.GANG_MEMBER: MEMBER_BYTES_MAX}
_FIRST_LABELS = (*COSCHEDULING_GROUPS, *sorted(_ASKING))  # dialects read some of these names from labels
_ENCODE = msgspec.json.Encoder().encode


def bounded_annotations(annotations: Mapping[str, str]) -> dict[str, str]:
    """Return those annotations of a pod that the product reads, each limited in size.

    If an annotation is longer than its reader accepts, it is replaced by a text that the reader refuses.
    """
    wanted: Iterable[str] = _MAX if names.REQUEST in annotations else {*_MAX, *_ASKING}
    found: dict[str, str] = {}
    for name in wanted:
        text = annotations.get(name)
        if text is not None and name in _MAX:
            found[name] = text if len(text) <= _MAX[name] else oversized(len(text), _MAX[name])
        elif text is not None:
            found[name] = text[: ANNOTATION_CHARACTERS_MAX + 1]
    return found


def bounded_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Return labels of a pod, up to ``LABEL_BYTES_MAX`` bytes.

    If the labels are longer, those that the product reads are kept, and then as many others as fit, in order of name.
    """
    size = sum(map(len, labels)) + sum(map(len, labels.values()))
    if size <= LABEL_BYTES_MAX:
        return dict(labels)
    found = {name: labels[name] for name in _FIRST_LABELS if name in labels}
    size = sum(len(name) + len(value) for name, value in found.items())
    for name in sorted(labels.keys() - found.keys()):
        size += len(name) + len(labels[name])
        if size > LABEL_BYTES_MAX:
            break
        found[name] = labels[name]
    return found


def bounded_pod(pod: Pod) -> Pod:
    """Return the pod with a spec and a status of limited size.

    If the spec is too large, the pod's request is replaced by one that cannot be decoded. The annotations and the
    labels of the pod must have been limited before.
    """
    meta, spec, status = pod.metadata, pod.spec, pod.status
    size = len(_ENCODE(spec))
    if size > REST_BYTES_MAX:
        annotations = meta.annotations | {
            names.REQUEST: oversized(size, REST_BYTES_MAX, "what is read of its spec has")
        }
        meta = msgspec.structs.replace(meta, annotations=annotations)
        spec = _bare(spec)
    if len(_ENCODE(status)) > REST_BYTES_MAX:
        status = PodStatus(
            phase=status.phase, conditions=tuple(c for c in status.conditions if c.type == "PodScheduled")[:1]
        )
    return Pod(metadata=meta, spec=spec, status=status)


def keep_node_pod(pod: Pod) -> Pod:
    """Return a pod with only the fields that the node agent reads, limited in size, for the mirror of a node's pods."""
    meta, spec, status = pod.metadata, pod.spec, pod.status
    annotations = bounded_annotations({n: t for n, t in meta.annotations.items() if n in _MAX})
    kept = Pod(
        metadata=ObjectMeta(
            name=meta.name,
            namespace=meta.namespace,
            uid=meta.uid,
            resource_version=meta.resource_version,
            creation_timestamp=meta.creation_timestamp,
            deletion_timestamp=meta.deletion_timestamp,
            deletion_grace_period_seconds=meta.deletion_grace_period_seconds,
            annotations=annotations,
        ),
        spec=PodSpec(
            node_name=spec.node_name,
            scheduler_name=spec.scheduler_name,
            containers=tuple(map(_asking, spec.containers)),
            init_containers=tuple(map(_asking, spec.init_containers)),
            priority=spec.priority,
            resource_claims=spec.resource_claims,
        ),
        status=msgspec.structs.replace(
            status,
            message=status.message[:TEXT_MAX],
            conditions=tuple(msgspec.structs.replace(c, message=c.message[:TEXT_MAX]) for c in status.conditions[:64]),
        ),
    )
    size = len(_ENCODE(kept.spec))
    if size > REST_BYTES_MAX:
        annotations |= {names.PLAN: oversized(size, REST_BYTES_MAX, "what is read of its spec has")}
        kept = msgspec.structs.replace(kept, spec=_bare(spec))
    if len(_ENCODE(kept.status)) > REST_BYTES_MAX:
        kept = msgspec.structs.replace(kept, status=PodStatus(phase=status.phase, start_time=status.start_time))
    return kept


def _asking(container: Container) -> Container:
    resources = container.resources
    limits = {name: text[:TEXT_MAX] for name, text in resources.limits.items() if name == names.GPUS}
    return Container(
        name=container.name,
        resources=ContainerResources(limits=limits, claims=resources.claims),
        restart_policy=container.restart_policy,
    )


def _bare(spec: PodSpec) -> PodSpec:
    """Return a spec with only the fields that cannot be large.

    Of the scheduling gates, the planner's own gate and one other gate are kept, because only their presence matters.
    """
    ours = [gate for gate in spec.scheduling_gates if gate.name == names.PLAN_GATE][:1]
    others = [PodSchedulingGate(name=g.name[:TEXT_MAX]) for g in spec.scheduling_gates if g.name != names.PLAN_GATE][:1]
    return PodSpec(
        node_name=spec.node_name,
        scheduler_name=spec.scheduler_name,
        scheduling_gates=(*ours, *others),
        priority=spec.priority,
    )
