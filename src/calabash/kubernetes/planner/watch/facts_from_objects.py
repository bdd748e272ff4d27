"""From objects of the API server to what the planner is told."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import datetime
from functools import lru_cache
from sys import intern
from typing import cast

import msgspec

from calabash.adapters.kube.objects.core import (
    Condition,
    Namespace,
    Node,
    Pod,
    PodDisruptionBudget,
    SelectorRequirement,
    Toleration,
)
from calabash.adapters.kube.objects.groups import MemberGroup, PodGroup
from calabash.adapters.kube.objects.meta import OwnerReference
from calabash.adapters.kube.objects.resources import GpuNode, GpuNodeMigInstance, GpuNodeMigProfile, KubeQueue
from calabash.binder.cluster.device_kinds import NodeDevice, Wish
from calabash.kubernetes.dialects.pod import AskingPod
from calabash.kubernetes.dialects.translate import translate
from calabash.kubernetes.objects.allocation_api import NodeDoor
from calabash.kubernetes.objects.names import (
    DOOR,
    GPUS,
    ISOLATION,
    PLAN,
    PLAN_GATE,
    POOL,
    QUEUE,
    QUEUES,
    REQUEST,
    SCHEDULER,
    TENANT,
)
from calabash.kubernetes.objects.plan import PlannedContainer, PodPlan, read_plan
from calabash.kubernetes.objects.shards import is_ours, pool_of_queue
from calabash.kubernetes.planner.state.affinity import confined_to
from calabash.kubernetes.planner.state.budgets import BudgetSeen, LabelTerm
from calabash.kubernetes.planner.state.facts import (
    GpuNodeSeen,
    NamespaceSeen,
    NodeSeen,
    PodSeen,
    QueueSeen,
    SliceSeen,
)
from calabash.kubernetes.planner.watch.facts_from_claims import pod_claims
from calabash.kubernetes.pod_request import PodRequest, read_request
from calabash.model.device import Device, DeviceUuid, Health
from calabash.model.errors import CalabashError
from calabash.model.mig import MigGeometry, MigInstance, MigPart, MigProfile
from calabash.model.request import AllocationId, ModeName
from calabash.node.membership.container import is_of_claim
from calabash.sharing.exclusive import MODE as EXCLUSIVE

ALL_QUEUES = "*"
_ENDED = ("Succeeded", "Failed")
_REFUSED = ("UnexpectedAdmissionError", "OutOf")
_REFUSAL_MAX = 300
_DIGITS_MAX = 9
_NOT_SCHEDULED = ("Unschedulable", "SchedulerError")  # reasons that kube-scheduler gives
_TIED_TO_NODES = ("DaemonSet", "Node")


def pod_facts(pod: Pod, scheduler: str = SCHEDULER) -> PodSeen | None:
    """What the planner is told of a pod; None when it asks for no devices. ``scheduler``: the name of who asks it."""
    meta, spec, status = pod.metadata, pod.spec, pod.status
    fault = ""
    try:
        request = _request(pod)
    except CalabashError as error:
        request, fault = None, str(error).replace("\n", "; ")
    claims = pod_claims(pod)
    if request is None and not (fault or claims):
        return None
    by_claims = request.door is NodeDoor.CLAIMS if request is not None else bool(claims)
    gates = {gate.name for gate in spec.scheduling_gates}
    scheduled = next((c for c in status.conditions if c.type == "PodScheduled"), None)
    return PodSeen(
        uid=meta.uid,
        namespace=meta.namespace,
        name=meta.name,
        created_at_s=seconds(meta.creation_timestamp),
        request=request,
        fault=fault,
        wish=wish_of(pod, NodeDoor.CLAIMS if by_claims else NodeDoor.TOKENS),
        priority=spec.priority or 0,
        node=spec.node_name,
        bound_at_s=_since(scheduled) if spec.node_name else 0.0,
        nominated=status.nominated_node_name,
        plan=plan_in(pod),
        gated=PLAN_GATE in gates,
        held=bool(gates - {PLAN_GATE}),
        refused=scheduled is not None and scheduled.status == "False" and scheduled.reason in _NOT_SCHEDULED,
        finished=status.phase in _ENDED,
        leaving=meta.deletion_timestamp is not None,
        remade=meta.controller is not None,
        tied=meta.controller is not None and not is_made_elsewhere(meta.controller),
        owner=f"{meta.namespace}/{meta.controller.uid}" if meta.controller else "",
        movable=request is not None and request.movable and is_made_elsewhere(meta.controller),
        own=spec.scheduler_name == scheduler,
        confined=() if is_ours(spec.scheduler_name) else confined_to(pod),
        refusal=refusal_of(pod),
        claims=claims,
        labels=meta.labels,
    )


def _since(scheduled: Condition | None) -> float:
    """Since when a pod is scheduled; 0 when it is not said."""
    return seconds(scheduled.last_transition_time) if scheduled is not None and scheduled.status == "True" else 0.0


def may_concern_us(pod: Pod) -> bool:
    """Whether a pod of another scheduler may use devices: it asks for our tokens, names claims, or was let in by us."""
    extended = pod.status.extended_resource_claim_status is not None
    if REQUEST in pod.metadata.annotations or pod.spec.resource_claims or extended:
        return True
    return any(GPUS in c.resources.limits for c in (*pod.spec.containers, *pod.spec.init_containers))


def is_made_elsewhere(controller: OwnerReference | None) -> bool:
    """Whether it makes the pod again, on whatever node."""
    return controller is not None and controller.kind not in _TIED_TO_NODES


def refusal_of(pod: Pod) -> str:
    """Why the kubelet refused a pod that was bound to it, which ends the pod for good."""
    status = pod.status
    if status.phase != "Failed" or not status.reason.startswith(_REFUSED):
        return ""
    return f"{status.reason}: {status.message}"[:_REFUSAL_MAX] if status.message else status.reason


def plan_in(pod: Pod) -> PodPlan | None:
    """The plan in the annotation, when it is one and of this very pod."""
    text = pod.metadata.annotations.get(PLAN)
    if text is None:
        return None
    try:
        plan = read_plan(text)
    except CalabashError:
        return None
    return _shared(plan, pod.metadata.uid) if plan.pod_uid == pod.metadata.uid else None


def _shared(plan: PodPlan, uid: str) -> PodPlan:
    """The same, with the names that others have as well held once."""
    containers = tuple(
        PlannedContainer(
            name=intern(c.name),
            mode=intern(c.mode),
            policy=c.policy,
            slices=tuple(msgspec.structs.replace(s, device=intern(s.device)) for s in c.slices),
        )
        for c in plan.containers
    )
    return PodPlan(id=plan.id, pod_uid=uid, node=intern(plan.node), containers=containers)


_CACHED_MAX = 4096  # characters of what is cached: users decide how many there are
_cached_request = lru_cache(maxsize=4096)(read_request)  # those of one job are the same


def _read_request(text: str) -> PodRequest:
    return _cached_request(text) if len(text) <= _CACHED_MAX else read_request(text)


def _request(pod: Pod) -> PodRequest | None:
    """What it asks for: as admission wrote it, else as its words mean."""
    text = pod.metadata.annotations.get(REQUEST)
    if text is not None:
        return _read_request(text)
    try:
        asking = msgspec.convert(msgspec.to_builtins(pod), AskingPod)
    except msgspec.ValidationError as error:
        raise CalabashError(f"the pod cannot be read: {error}") from error
    return translate(asking)


# ---- where a pod may go -------------------------------------------------------------------------------------------


def wish_of(pod: Pod, door: NodeDoor = NodeDoor.TOKENS) -> Wish:
    """Which nodes its spec accepts, as far as it can be said here; the rest is kube-scheduler's. Of another door than its
    own it accepts none."""
    spec = pod.spec
    wanted = [f"{key}={value}" for key, value in sorted(spec.node_selector.items())]
    required = spec.affinity.node_affinity.required if spec.affinity and spec.affinity.node_affinity else None
    if required is not None and len(required.node_selector_terms) == 1:
        term = required.node_selector_terms[0]
        wanted += [text for one in term.match_expressions if (text := _expression(one))]
    tolerated = frozenset(t for one in spec.tolerations for t in _tolerated(one))
    small = sum(map(len, wanted)) + sum(map(len, tolerated)) <= _CACHED_MAX
    return (_cached_wish if small else _one_wish)(tuple(wanted), tolerated, door)


def _one_wish(selector: tuple[str, ...], tolerations: frozenset[str], door: NodeDoor) -> Wish:
    return Wish(selector=selector, tolerations=tolerations, door=door)


_cached_wish = lru_cache(maxsize=4096)(_one_wish)  # those of one job are the same


def _expression(one: SelectorRequirement) -> str:
    values = ",".join(one.values)
    match one.operator:
        case "In" if values:
            return f"{one.key} in ({values})"
        case "NotIn" if values:
            return f"{one.key} notin ({values})"
        case "Exists":
            return one.key
        case "DoesNotExist":
            return f"!{one.key}"
    return ""  # Gt and Lt: kube-scheduler sees to them


def _tolerated(one: Toleration) -> Iterator[str]:
    if not one.key:
        yield "*"
        return
    key = one.key if one.operator == "Exists" else f"{one.key}={one.value}"
    yield f"{key}:{one.effect}" if one.effect else key


# ---- everything else ----------------------------------------------------------------------------------------------


def node_facts(node: Node) -> NodeSeen:
    tokens = node.status.allocatable.get(GPUS, "0")
    return NodeSeen(
        name=node.metadata.name,
        labels=node.metadata.labels,
        taints=tuple(f"{t.key}={t.value}:{t.effect}" for t in node.spec.taints),
        schedulable=not node.spec.unschedulable,
        offers=tokens != "0",
        tokens=int(tokens) if len(tokens) <= _DIGITS_MAX and tokens.isdecimal() else None,
        door=node.metadata.labels.get(DOOR, ""),
    )


@lru_cache(maxsize=256)
def _modes(names: tuple[str, ...]) -> frozenset[ModeName]:
    return frozenset(ModeName(name) for name in names)


@lru_cache(maxsize=256)
def _geometry(profiles: tuple[GpuNodeMigProfile, ...]) -> MigGeometry | None:
    """How a card can be cut; None where its agent tells of no way."""
    if not profiles:
        return None
    return MigGeometry(
        slices=max(p.slices for p in profiles),
        compute=max(p.compute for p in profiles),
        profiles=tuple(
            MigProfile(
                name=p.name,
                compute=p.compute,
                slices=p.slices,
                starts=p.starts,
                limit=p.limit,
                memory_mib=p.memory_mib,
                media=p.media,
            )
            for p in profiles
        ),
    )


def _instance(one: GpuNodeMigInstance) -> MigInstance:
    parts = tuple(MigPart(start=part.start, compute=part.compute, kept=True) for part in one.parts)
    return MigInstance(profile=one.profile, start=one.start, fixed=one.fixed, foreign=one.foreign, parts=parts)


def gpu_node_facts(node: GpuNode) -> GpuNodeSeen:
    """A device that an administrator drains is counted as ill from that moment, not only when its agent has heard of it. One
    that is told of twice is there once: the API server lets it pass."""
    drained = {uuid for uuid, care in node.spec.devices.items() if care.drained}
    told = list({d.uuid: d for d in reversed(node.status.devices)}.values())
    devices = tuple(
        NodeDevice(
            device=Device(
                uuid=DeviceUuid(d.uuid),
                index=d.index,
                vendor="nvidia",
                model=d.model,
                memory_mib=d.memory_mib,
                pci_bus_id=d.pci_bus_id,
                numa_node=d.numa_node,
                nvlink_peers=cast(tuple[DeviceUuid, ...], d.nvlink_peers),
                spill_mib=d.spill_mib,
                replicas=d.replicas,
                mig=_geometry(d.mig_profiles),
                mig_instances=tuple(_instance(i) for i in d.mig_instances),
                pinned=d.modes[0] if len(d.modes) == 1 else "",
                health=Health.HEALTHY if d.health == Health.HEALTHY and d.uuid not in drained else Health.LOST,
            ),
            modes=_modes(d.modes),
            foreign_mib=d.foreign_mib,
        )
        for d in sorted(told, key=lambda d: d.index)
    )
    slices = tuple(
        SliceSeen(
            pod_uid=s.pod_uid, device=d.uuid, memory_mib=s.memory_mib - s.spill_mib, whole=s.mode == EXCLUSIVE.name
        )
        for d in told
        for s in d.slices
        if not is_of_claim(AllocationId(s.allocation))  # these are known from the claims
    )
    schedulable = not node.spec.unschedulable
    door = node.status.door
    return GpuNodeSeen(name=node.metadata.name, devices=devices, slices=slices, schedulable=schedulable, door=door)


def all_queues(queues: Iterable[KubeQueue]) -> list[QueueSeen]:
    """All queues that there are, each with the pool that its tree is in."""
    found = [queue_facts(queue) for queue in queues]
    tree = {one.name: (one.parent, one.pool) for one in found}
    return [one if one.pool == (pool := pool_of_queue(one.name, tree)) else replace(one, pool=pool) for one in found]


def queue_facts(queue: KubeQueue) -> QueueSeen:
    """With the pool that its own label names."""
    spec = queue.spec
    return QueueSeen(
        name=queue.metadata.name,
        parent=spec.parent,
        deserved=spec.deserved,
        limit=spec.limit,
        weight=spec.weight,
        tenant=queue.metadata.labels.get(TENANT, ""),
        pool=queue.metadata.labels.get(POOL, ""),
        eviction_grace_s=spec.eviction_grace_seconds,
    )


def namespace_facts(namespace: Namespace) -> NamespaceSeen:
    meta = namespace.metadata
    allowed = frozenset(word.strip() for word in meta.annotations.get(QUEUES, "").split(",") if word.strip())
    return NamespaceSeen(
        name=meta.name,
        queue=meta.labels.get(QUEUE, ""),
        allowed=allowed,
        isolation=meta.labels.get(ISOLATION, ""),
    )


def budget_facts(budget: PodDisruptionBudget) -> BudgetSeen:
    selector = budget.spec.selector
    terms = None
    if selector is not None:
        labels = [LabelTerm(key=key, operator="In", values=(value,)) for key, value in selector.match_labels.items()]
        more = [LabelTerm(key=e.key, operator=e.operator, values=e.values) for e in selector.match_expressions]
        terms = (*labels, *more)
    meta = budget.metadata
    allowed = budget.status.disruptions_allowed
    return BudgetSeen(namespace=meta.namespace, name=meta.name, terms=terms, allowed=allowed)


def group_size(group: PodGroup | MemberGroup) -> int:
    """How many members must start together."""
    if isinstance(group, MemberGroup):
        return max(1, group.spec.min_member)
    gang = group.spec.scheduling_policy.gang
    return max(1, gang.min_count) if gang is not None else 1


def seconds(when: str | None) -> float:
    """RFC 3339 as seconds since 1970; 0 when it is not a time."""
    try:
        return datetime.fromisoformat(when).timestamp() if when else 0.0
    except ValueError:
        return 0.0
