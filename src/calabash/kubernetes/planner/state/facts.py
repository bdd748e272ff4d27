"""Facts that the planner reads from API objects, and actions that it requests.

All are frozen values, whose form does not depend on that of the API objects.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from calabash.binder.cluster.device_kinds import NodeDevice, PlacementConstraints
from calabash.kubernetes.gang_member import GangMember
from calabash.kubernetes.objects.allocation_api import AllocationApi
from calabash.kubernetes.objects.plan import PlannedContainer, PodPlan
from calabash.kubernetes.objects.pod_name import PodName
from calabash.kubernetes.pod_request import PodRequest
from calabash.model.errors import Reason
from calabash.model.messages import Text
from calabash.model.request import GpuRequest

ANYWHERE = PlacementConstraints()


@dataclass(frozen=True, slots=True, kw_only=True)
class PodClaimFacts:
    """Entry of a pod's spec that names a claim.

    Args:
        name: the pod's name for the claim.
        claim: name of the claim object; "" while the claim of ``template`` has not been created.
        template: name of the claim template; "" for none.
    """

    name: str
    claim: str = ""
    template: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimFacts:
    """A resource claim.

    Args:
        owner: UID of the pod for which the claim was created; "" if it was created for any pod that names it.
        pod_claim: the owner's name for the claim.
        request: what is requested of our driver. None if nothing is, or if the request cannot be read.
        fault: why the request cannot be read; "" if it can.
        node: node on which the claim is allocated; "" if it is not allocated.
        held: devices and amounts of that node that are allocated to the claim; None while the node has not reported
            these devices.
        leaving: the claim is being deleted.
    """

    uid: str
    namespace: str
    name: str
    owner: str = ""
    pod_claim: str = ""
    request: GpuRequest | None = None
    fault: str = ""
    node: str = ""
    held: PlannedContainer | None = None
    leaving: bool = False

    @property
    def key(self) -> tuple[str, str]:
        return (self.namespace, self.name)

    @property
    def is_ours(self) -> bool:
        """Return True if the claim requests devices of our driver, or has some."""
        return bool(self.request is not None or self.fault or self.node)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodFacts:
    """A pod that requests devices.

    Args:
        created_at_s: time of the creation in seconds since 1970.
        request: what the pod requests; None with ``fault`` if it cannot be read.
        constraints: constraints of the pod's spec on its node.
        node: node to which the pod is bound; "" if it is not bound.
        bound_at_s: time of the binding in seconds since 1970, to the second; 0 if not known.
        nominated: the nominated node of the pod's status.
        plan: the plan in the pod's annotation, if it is valid and made for this pod.
        gated: our scheduling gate is set.
        held_by_other_gate: a scheduling gate of another system is set.
        refused: kube-scheduler has found no node for the pod.
        finished: the pod has ended.
        leaving: the pod is being deleted.
        is_recreated: the pod's controller creates another when the pod is deleted.
        recreated_on_same_node: the controller creates it on the same node, as a DaemonSet does.
        owner: namespace and UID of the controller; "" for none. Owner references are written by the pod's creator.
        movable: the pod may be evicted so that its controller creates another elsewhere.
        uses_our_scheduler: our kube-scheduler, which asks the planner, places the pod.
        candidate_nodes: nodes to which the pod's affinity restricts it by name; empty if it does not.
        refusal: why the pod's kubelet refused it for good; "" if it did not.
        claims: the claims that the pod names, of any driver.
        waits_for: text about a claim that is missing or not allocated, so that nothing can be decided yet; "" for none.
        pins: nodes on which claims of the pod are allocated already.
        rides: the pod needs no plan: all its claims are counted for other pods, or request no devices of ours, or it is
            a member of a gang without devices.
        member: the pod as a member of the gang of its owner; None if admission has read no such gang.
    """

    uid: str
    namespace: str
    name: str
    created_at_s: float
    request: PodRequest | None
    fault: str = ""
    constraints: PlacementConstraints = ANYWHERE
    priority: int = 0
    node: str = ""
    bound_at_s: float = 0.0
    nominated: str = ""
    plan: PodPlan | None = None
    gated: bool = False
    held_by_other_gate: bool = False
    refused: bool = False
    finished: bool = False
    leaving: bool = False
    is_recreated: bool = False
    recreated_on_same_node: bool = False
    owner: str = ""
    movable: bool = False
    uses_our_scheduler: bool = True
    candidate_nodes: tuple[str, ...] = ()
    refusal: str = ""
    claims: tuple[PodClaimFacts, ...] = ()
    waits_for: str = ""
    pins: tuple[str, ...] = ()
    rides: bool = False
    member: GangMember | None = None
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def by_claims(self) -> bool:
        """Return True if the pod gets devices by claims that it names, or by one that kube-scheduler creates for it."""
        return bool(self.claims) or (self.request is not None and self.request.allocation_api is AllocationApi.CLAIMS)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """A node.

    Args:
        taints: ``key=value:Effect``.
        schedulable: False if the node is cordoned in Kubernetes.
        offers_device_ids: the kubelet has device IDs.
        device_ids: how many device IDs the kubelet counts, including those in use; None if not known.
        allocation_api: value of the node's label; "" for none.
    """

    name: str
    labels: Mapping[str, str]
    taints: tuple[str, ...] = ()
    schedulable: bool = True
    offers_device_ids: bool = True
    device_ids: int | None = None
    allocation_api: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceFacts:
    """A slice that a node's agent has granted.

    Args:
        memory_mib: guaranteed memory; 0: not limited.
        whole: no other pod may use the device.
    """

    pod_uid: str
    device: str
    memory_mib: int
    whole: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuNodeFacts:
    """The devices of a node, as its agent reports them.

    Args:
        schedulable: False if an administrator has cordoned the devices.
        allocation_api: how the devices are requested where the node's label does not say.
        agent_version: version of the agent; "" if it is unknown.
    """

    name: str
    devices: tuple[NodeDevice, ...]
    slices: tuple[SliceFacts, ...] = ()
    schedulable: bool = True
    allocation_api: str = ""
    agent_version: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueFacts:
    """A queue. Amounts are devices.

    Args:
        parent: name of the queue above; "" for none.
        deserved: devices that the queue is guaranteed.
        limit: most devices in use; None: unlimited.
        weight: the queue's share of devices beyond the deserved amounts, relative to the weights of other queues.
        tenant: tenant that owns the queue; "" for none.
        pool: pool of the nodes for the queue's pods; "": nodes of no pool.
        eviction_grace_s: longest termination grace period of an evicted pod; None: as for the queue above.
    """

    name: str
    parent: str = ""
    deserved: float = 0.0
    limit: float | None = None
    weight: float = 1.0
    tenant: str = ""
    pool: str = ""
    eviction_grace_s: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceFacts:
    """A namespace.

    Args:
        queue: default queue of its pods; "" for none.
        allowed: other queues that its pods may name.
        isolation: value of the label with the least isolation level of its pods; "" for none.
    """

    name: str
    queue: str = ""
    allowed: frozenset[str] = frozenset()
    isolation: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleasePod:
    """Nominate the node, then write the plan and remove our gate.

    With ``nodes``, restrict the pod to these nodes instead of writing the plan, which is written when the pod is bound.
    """

    pod: PodName
    plan: PodPlan
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class UngatePod:
    """Remove our gate from a pod that needs no plan."""

    pod: PodName


@dataclass(frozen=True, slots=True, kw_only=True)
class WritePlan:
    """Write the plan of a bound pod."""

    pod: PodName
    plan: PodPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Nominate:
    """Write the nominated node to the pod's status; kube-scheduler then checks other nodes only if it does not fit."""

    pod: PodName
    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictPod:
    """Request the pod's eviction, subject to disruption budgets.

    Args:
        message: explains the eviction, and names the pod that gets the devices.
        grace_max_s: longest termination grace period; None: the pod's own.
        owed: the devices are borrowed and are being reclaimed: a budget that refuses is overruled.
    """

    pod: PodName
    reason: Reason
    message: str
    grace_max_s: int | None = None
    owed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Write an event and a condition that say why the pod waits or, if ``reason`` is None, that it is planned.

    The condition is ``PodScheduled``, which is written only while the pod waits. With ``own_condition`` it is
    ``names.PLANNED``, because kube-scheduler itself writes ``PodScheduled`` of this pod.
    """

    pod: PodName
    reason: Reason | None
    message: Text
    own_condition: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPod:
    """Report a pod that its kubelet has refused for good.

    With ``is_recreated`` the pod is also deleted, so that its controller creates another.
    """

    pod: PodName
    is_recreated: bool
    message: str


Action = ReleasePod | UngatePod | WritePlan | Nominate | EvictPod | Report | SweepPod
