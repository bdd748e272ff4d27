"""Convert API objects (pods, nodes, queues, namespaces, budgets, gang groups) to facts of the planner."""

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
from calabash.binder.cluster.device_kinds import NodeDevice, PlacementConstraints
from calabash.kubernetes.dialects.pod import AskingPod
from calabash.kubernetes.dialects.translate import translate
from calabash.kubernetes.objects.allocation_api import AllocationApi
from calabash.kubernetes.objects.names import (
    ALLOCATION_API,
    GANG_MEMBER,
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
from calabash.kubernetes.planner.state.affinity import candidate_nodes_of
from calabash.kubernetes.planner.state.budgets import BudgetFacts, LabelTerm
from calabash.kubernetes.planner.state.facts import (
    GpuNodeFacts,
    NamespaceFacts,
    NodeFacts,
    PodFacts,
    QueueFacts,
    SliceFacts,
)
from calabash.kubernetes.planner.watch.facts_from_claims import pod_claims
from calabash.kubernetes.planner.watch.membership import gang_member
from calabash.kubernetes.pod_request import PodRequest, read_request
from calabash.model.device import Device, DeviceUuid, Health
from calabash.model.errors import CalabashError
from calabash.model.mig import MigGeometry, MigInstance, MigPart, MigProfile
from calabash.model.request import AllocationId, ModeName
from calabash.node.membership.container import is_of_claim
from calabash.sharing.exclusive import MODE as EXCLUSIVE

_ENDED = ("Succeeded", "Failed")
_REFUSED = ("UnexpectedAdmissionError", "OutOf")
_REFUSAL_MAX, _DIGITS_MAX = 300, 9
_NOT_SCHEDULED = ("Unschedulable", "SchedulerError")  # reasons that kube-scheduler gives
_TIED_TO_NODES = ("DaemonSet", "Node")


def pod_facts(pod: Pod, scheduler: str = SCHEDULER) -> PodFacts | None:
    """Return the facts of a pod; None if it requests no devices.

    ``scheduler``: name of the kube-scheduler that asks this planner.
    """
    meta, spec, status = pod.metadata, pod.spec, pod.status
    try:
        request, fault = _request(pod), ""
    except CalabashError as error:
        request, fault = None, str(error).replace("\n", "; ")
    claims, (member, fault) = pod_claims(pod), gang_member(pod, request, fault)
    if request is None and not (fault or claims or member):
        return None
    by_claims = request.allocation_api is AllocationApi.CLAIMS if request is not None else bool(claims)
    gates = {gate.name for gate in spec.scheduling_gates}
    scheduled = next((c for c in status.conditions if c.type == "PodScheduled"), None)
    return PodFacts(
        uid=meta.uid,
        namespace=meta.namespace,
        name=meta.name,
        created_at_s=seconds(meta.creation_timestamp),
        request=request,
        fault=fault,
        constraints=constraints_of(pod, AllocationApi.CLAIMS if by_claims else AllocationApi.TOKENS),
        priority=spec.priority or 0,
        node=spec.node_name,
        bound_at_s=_since(scheduled) if spec.node_name else 0.0,
        nominated=status.nominated_node_name,
        plan=plan_in(pod),
        gated=PLAN_GATE in gates,
        held_by_other_gate=bool(gates - {PLAN_GATE}),
        refused=scheduled is not None and scheduled.status == "False" and scheduled.reason in _NOT_SCHEDULED,
        finished=status.phase in _ENDED,
        leaving=meta.deletion_timestamp is not None,
        is_recreated=meta.controller is not None,
        recreated_on_same_node=meta.controller is not None and not is_made_elsewhere(meta.controller),
        owner=f"{meta.namespace}/{meta.controller.uid}" if meta.controller else "",
        movable=request is not None and request.movable and is_made_elsewhere(meta.controller),
        uses_our_scheduler=spec.scheduler_name == scheduler,
        candidate_nodes=() if is_ours(spec.scheduler_name) else candidate_nodes_of(pod),
        refusal=refusal_of(pod),
        claims=claims,
        rides=request is None and not fault and member is not None,
        member=member,
        labels=meta.labels,
    )


def _since(scheduled: Condition | None) -> float:
    """Return when a pod was scheduled, in seconds since 1970; 0 if not known."""
    return seconds(scheduled.last_transition_time) if scheduled is not None and scheduled.status == "True" else 0.0


def may_concern_us(pod: Pod) -> bool:
    """Return True if a pod of another scheduler may use devices.

    Such a pod requests our resources, names claims, or has an annotation of admission.
    """
    extended = pod.status.extended_resource_claim_status is not None
    if extended or pod.spec.resource_claims or not {REQUEST, GANG_MEMBER}.isdisjoint(pod.metadata.annotations):
        return True
    return any(GPUS in c.resources.limits for c in (*pod.spec.containers, *pod.spec.init_containers))


def is_made_elsewhere(controller: OwnerReference | None) -> bool:
    """Return True if the controller recreates its pods, on any node."""
    return controller is not None and controller.kind not in _TIED_TO_NODES


def refusal_of(pod: Pod) -> str:
    """Return why the kubelet refused a pod that was bound to its node, which ends the pod; "" if it did not."""
    status = pod.status
    if status.phase != "Failed" or not status.reason.startswith(_REFUSED):
        return ""
    return f"{status.reason}: {status.message}"[:_REFUSAL_MAX] if status.message else status.reason


def plan_in(pod: Pod) -> PodPlan | None:
    """Return the plan in the pod's annotation; None if there is none, or it is invalid or of another pod."""
    text = pod.metadata.annotations.get(PLAN)
    if text is None:
        return None
    try:
        plan = read_plan(text)
    except CalabashError:
        return None
    return _shared(plan, pod.metadata.uid) if plan.pod_uid == pod.metadata.uid else None


def _shared(plan: PodPlan, uid: str) -> PodPlan:
    """Return an equal plan whose strings are interned, so that plans share them in memory."""
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


_CACHED_MAX = 4096  # longest cached value: users choose the size
_cached_request = lru_cache(maxsize=4096)(read_request)  # pods of one job have equal ones


def _read_request(text: str) -> PodRequest:
    return _cached_request(text) if len(text) <= _CACHED_MAX else read_request(text)


def _request(pod: Pod) -> PodRequest | None:
    """Return the request that admission wrote, else that of the spec; None if the pod requests no devices."""
    text = pod.metadata.annotations.get(REQUEST)
    if text is not None:
        return _read_request(text)
    try:
        asking = msgspec.convert(msgspec.to_builtins(pod), AskingPod)
    except msgspec.ValidationError as error:
        raise CalabashError(f"the pod cannot be read: {error}") from error
    return translate(asking)


# ---- where a pod may go -------------------------------------------------------------------------------------------


def constraints_of(pod: Pod, allocation_api: AllocationApi = AllocationApi.TOKENS) -> PlacementConstraints:
    """Return the constraints of the pod's spec on its node, as far as ``PlacementConstraints`` can express them.

    kube-scheduler checks all others. ``allocation_api`` is the allocation API that the node must offer.
    """
    spec = pod.spec
    wanted = [f"{key}={value}" for key, value in sorted(spec.node_selector.items())]
    required = spec.affinity.node_affinity.required if spec.affinity and spec.affinity.node_affinity else None
    if required is not None and len(required.node_selector_terms) == 1:
        term = required.node_selector_terms[0]
        wanted += [text for one in term.match_expressions if (text := _expression(one))]
    tolerated = frozenset(t for one in spec.tolerations for t in _tolerated(one))
    small = sum(map(len, wanted)) + sum(map(len, tolerated)) <= _CACHED_MAX
    return (_cached_constraints if small else _new_constraints)(tuple(wanted), tolerated, allocation_api)


def _new_constraints(selector: tuple[str, ...], tolerated: frozenset[str], api: AllocationApi) -> PlacementConstraints:
    return PlacementConstraints(selector=selector, tolerations=tolerated, allocation_api=api)


_cached_constraints = lru_cache(maxsize=4096)(_new_constraints)  # pods of one job have equal ones


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
    return ""  # Gt and Lt: kube-scheduler checks them


def _tolerated(one: Toleration) -> Iterator[str]:
    if not one.key:
        yield "*"
        return
    key = one.key if one.operator == "Exists" else f"{one.key}={one.value}"
    yield f"{key}:{one.effect}" if one.effect else key


# ---- everything else ----------------------------------------------------------------------------------------------


def node_facts(node: Node) -> NodeFacts:
    tokens = node.status.allocatable.get(GPUS, "0")
    return NodeFacts(
        name=node.metadata.name,
        labels=node.metadata.labels,
        taints=tuple(f"{t.key}={t.value}:{t.effect}" for t in node.spec.taints),
        schedulable=not node.spec.unschedulable,
        offers_device_ids=tokens != "0",
        device_ids=int(tokens) if len(tokens) <= _DIGITS_MAX and tokens.isdecimal() else None,
        allocation_api=node.metadata.labels.get(ALLOCATION_API, ""),
    )


@lru_cache(maxsize=256)
def _modes(names: tuple[str, ...]) -> frozenset[ModeName]:
    return frozenset(ModeName(name) for name in names)


@lru_cache(maxsize=256)
def _geometry(profiles: tuple[GpuNodeMigProfile, ...]) -> MigGeometry | None:
    """Return how a device can be partitioned; None if its agent reports no profiles."""
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


def gpu_node_facts(node: GpuNode) -> GpuNodeFacts:
    """Return the devices of a node as its agent reports them.

    A device that an administrator drains counts as unhealthy at once, even before its agent has read the order. A
    device that is listed twice counts once.
    """
    drained = {uuid for uuid, spec in node.spec.devices.items() if spec.drained}
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
        SliceFacts(
            pod_uid=s.pod_uid, device=d.uuid, memory_mib=s.memory_mib - s.spill_mib, whole=s.mode == EXCLUSIVE.name
        )
        for d in told
        for s in d.slices
        if not is_of_claim(AllocationId(s.allocation))  # these are known from the claims
    )
    return GpuNodeFacts(
        name=node.metadata.name,
        devices=devices,
        slices=slices,
        schedulable=not node.spec.unschedulable,
        agent_version=node.status.agent_version,
        allocation_api=node.status.allocation_api,
    )


def all_queues(queues: Iterable[KubeQueue]) -> list[QueueFacts]:
    """Return all queues, each with the pool of its tree."""
    found = [queue_facts(queue) for queue in queues]
    tree = {one.name: (one.parent, one.pool) for one in found}
    return [one if one.pool == (pool := pool_of_queue(one.name, tree)) else replace(one, pool=pool) for one in found]


def queue_facts(queue: KubeQueue) -> QueueFacts:
    """Return a queue, with the pool that its own label names."""
    spec = queue.spec
    return QueueFacts(
        name=queue.metadata.name,
        parent=spec.parent,
        deserved=spec.deserved,
        limit=spec.limit,
        weight=spec.weight,
        tenant=queue.metadata.labels.get(TENANT, ""),
        pool=queue.metadata.labels.get(POOL, ""),
        eviction_grace_s=spec.eviction_grace_seconds,
    )


def namespace_facts(namespace: Namespace) -> NamespaceFacts:
    meta = namespace.metadata
    allowed = frozenset(word.strip() for word in meta.annotations.get(QUEUES, "").split(",") if word.strip())
    return NamespaceFacts(
        name=meta.name,
        queue=meta.labels.get(QUEUE, ""),
        allowed=allowed,
        isolation=meta.labels.get(ISOLATION, ""),
    )


def budget_facts(budget: PodDisruptionBudget) -> BudgetFacts:
    selector = budget.spec.selector
    terms = None
    if selector is not None:
        labels = [LabelTerm(key=key, operator="In", values=(value,)) for key, value in selector.match_labels.items()]
        more = [LabelTerm(key=e.key, operator=e.operator, values=e.values) for e in selector.match_expressions]
        terms = (*labels, *more)
    meta = budget.metadata
    allowed = budget.status.disruptions_allowed
    return BudgetFacts(namespace=meta.namespace, name=meta.name, terms=terms, allowed=allowed)


def group_size(group: PodGroup | MemberGroup) -> int:
    """Return how many members of a gang group must start together."""
    if isinstance(group, MemberGroup):
        return max(1, group.spec.min_member)
    gang = group.spec.scheduling_policy.gang
    return max(1, gang.min_count) if gang is not None else 1


def seconds(when: str | None) -> float:
    """Return an RFC 3339 time as seconds since 1970; 0 if it is not a time."""
    try:
        return datetime.fromisoformat(when).timestamp() if when else 0.0
    except ValueError:
        return 0.0
