"""Pruning of mirrored objects: keep only what the planner reads, and share equal values.

This limits the planner's memory. A cluster of 5,000 nodes has 40,000 devices and as many pods, and an object as the API
server sends it takes two to four times the memory of its pruned form.
"""

from __future__ import annotations

from sys import intern
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from calabash.adapters.kube import PodSharing
from calabash.adapters.kube.objects.core import (
    BudgetSpec,
    BudgetStatus,
    Condition,
    Namespace,
    Node,
    NodeStatus,
    Pod,
    PodDisruptionBudget,
    PodStatus,
)
from calabash.adapters.kube.objects.groups import MemberGroup, MemberGroupSpec, PodGroup, PodGroupSpec
from calabash.adapters.kube.objects.meta import ObjectMeta
from calabash.adapters.kube.objects.resources import GpuNode, GpuNodeDevice, GpuNodeSlice, GpuNodeStatus
from calabash.kubernetes.object_limits import REST_BYTES_MAX, TEXT_MAX, bounded_annotations, bounded_labels, bounded_pod
from calabash.kubernetes.objects.names import GPUS, ISOLATION, QUEUE, QUEUES, REQUEST, TAKEN_FROM
from calabash.model.request import AllocationId
from calabash.node.membership.container import is_of_claim

_POOL_MAX = 10_000
_ENCODE = msgspec.json.Encoder().encode

Group = TypeVar("Group", PodGroup, MemberGroup)


class PodPruner:
    """Function for ``Mirror(keep=…)`` that prunes pods.

    Containers are dropped if the pod has the request annotation of the admission webhook, which replaces them.
    """

    def __init__(self) -> None:
        self._share = PodSharing()

    def __call__(self, pod: Pod) -> Pod:
        meta, spec, status = pod.metadata, pod.spec, pod.status
        annotations = {intern(name): text for name, text in bounded_annotations(meta.annotations).items()}
        if REQUEST in annotations:
            annotations[REQUEST] = intern(annotations[REQUEST])
            spec = replace(spec, containers=(), init_containers=(), ephemeral_containers=(), volumes=())
        owner = meta.controller
        kept = Pod(
            metadata=ObjectMeta(
                name=meta.name,
                namespace=meta.namespace,
                uid=intern(meta.uid),
                resource_version=meta.resource_version,
                creation_timestamp=meta.creation_timestamp,
                deletion_timestamp=meta.deletion_timestamp,
                labels=bounded_labels(meta.labels),
                annotations=annotations,
                owner_references=(owner,) if owner is not None else (),
            ),
            spec=spec,
            status=PodStatus(
                phase=intern(status.phase),
                reason=intern(status.reason),
                message=status.message[:TEXT_MAX] if status.reason else "",
                nominated_node_name=status.nominated_node_name,
                resource_claim_statuses=status.resource_claim_statuses,
                extended_resource_claim_status=status.extended_resource_claim_status,
                conditions=tuple(_condition(one) for one in status.conditions if one.type == "PodScheduled"),
            ),
        )
        return self._share(bounded_pod(kept))


def keep_budget(budget: PodDisruptionBudget) -> PodDisruptionBudget:
    """Return the part of a disruption budget that the planner reads.

    A selector that is too large is dropped. The planner then considers no pod protected by this budget, but the API
    server still applies the budget to every eviction.
    """
    selector = budget.spec.selector
    if selector is not None and len(_ENCODE(selector)) > REST_BYTES_MAX:
        selector = None
    return PodDisruptionBudget(
        metadata=_bare(budget.metadata, namespace=budget.metadata.namespace),
        spec=BudgetSpec(selector=selector),
        status=BudgetStatus(disruptions_allowed=budget.status.disruptions_allowed),
    )


def keep_group(group: Group) -> Group:
    """Return the part of a gang group that the planner reads: its size."""
    meta = _bare(group.metadata, namespace=group.metadata.namespace)
    if isinstance(group, MemberGroup):
        return MemberGroup(metadata=meta, spec=MemberGroupSpec(min_member=group.spec.min_member))
    return PodGroup(metadata=meta, spec=PodGroupSpec(scheduling_policy=group.spec.scheduling_policy))


def keep_namespace(namespace: Namespace) -> Namespace:
    """Return the part of a namespace that the planner reads: its queues and isolation level."""
    meta = namespace.metadata
    kept = _bare(meta)
    labels = {name: text for name, text in meta.labels.items() if name in (QUEUE, ISOLATION)}
    annotations = {name: text[:REST_BYTES_MAX] for name, text in meta.annotations.items() if name == QUEUES}
    return Namespace(metadata=replace(kept, labels=labels, annotations=annotations))


def keep_node(node: Node) -> Node:
    """Return the part of a node that the planner reads: labels, spec, and the number of device IDs."""
    offered = {GPUS: intern(count)} if (count := node.status.allocatable.get(GPUS)) is not None else {}
    labels = {intern(name): intern(value) for name, value in node.metadata.labels.items()}
    return Node(
        metadata=replace(_bare(node.metadata), labels=labels), spec=node.spec, status=NodeStatus(allocatable=offered)
    )


T = TypeVar("T")


class GpuNodePruner:
    """Function for ``Mirror(keep=…)`` that prunes GpuNodes to their devices and the memory that pods have of them."""

    def __init__(self) -> None:
        self._pool: dict[Any, Any] = {}

    def __call__(self, node: GpuNode) -> GpuNode:
        devices = tuple(self._device(one) for one in node.status.devices)
        taken = {name: text for name, text in node.metadata.labels.items() if name == TAKEN_FROM}
        return GpuNode(
            metadata=replace(_bare(node.metadata), labels=taken),
            spec=node.spec,
            status=GpuNodeStatus(
                agent_version=intern(node.status.agent_version),
                allocation_api=node.status.allocation_api,
                devices=devices,
            ),
        )

    def _device(self, device: GpuNodeDevice) -> GpuNodeDevice:
        uuid = intern(device.uuid)
        return GpuNodeDevice(
            uuid=uuid,
            index=device.index,
            model=intern(device.model),
            memory_mib=device.memory_mib,
            health=intern(device.health),
            numa_node=device.numa_node,
            pci_bus_id=intern(device.pci_bus_id),
            nvlink_peers=tuple(map(intern, device.nvlink_peers)),
            modes=self._interned(device.modes),
            slices=tuple(_slice(one) for one in device.slices if not is_of_claim(AllocationId(one.allocation))),
            foreign_mib=device.foreign_mib,
            spill_mib=device.spill_mib,
            replicas=device.replicas,
            mig_profiles=self._interned(device.mig_profiles),
            mig_instances=device.mig_instances,
        )

    def _interned(self, same: tuple[T, ...]) -> tuple[T, ...]:
        if len(self._pool) >= _POOL_MAX:
            self._pool.clear()
        found: tuple[T, ...] = self._pool.setdefault(same, same)
        return found


def _bare(meta: ObjectMeta, *, namespace: str = "") -> ObjectMeta:
    return ObjectMeta(
        name=intern(meta.name), namespace=intern(namespace), uid=meta.uid, resource_version=meta.resource_version
    )


def _slice(one: GpuNodeSlice) -> GpuNodeSlice:
    return GpuNodeSlice(
        pod="",
        pod_uid=intern(one.pod_uid),
        container="",
        mode=intern(one.mode),
        policy="",
        allocation="",
        memory_mib=one.memory_mib,
        spill_mib=one.spill_mib,
    )


def _condition(one: Condition) -> Condition:
    since = one.last_transition_time if one.status == "True" else None
    return Condition(
        type=intern(one.type), status=intern(one.status), reason=intern(one.reason), last_transition_time=since
    )
