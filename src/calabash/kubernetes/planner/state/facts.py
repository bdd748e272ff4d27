"""What the planner is told, and what it wants done: frozen values without any shape of the API server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from calabash.binder.cluster.device_kinds import NodeDevice, Wish
from calabash.kubernetes.objects.allocation_api import NodeDoor
from calabash.kubernetes.objects.plan import PlannedContainer, PodPlan
from calabash.kubernetes.objects.pod_name import PodName
from calabash.kubernetes.pod_request import PodRequest
from calabash.model.errors import Reason
from calabash.model.request import GpuRequest

ANYWHERE = Wish()


@dataclass(frozen=True, slots=True, kw_only=True)
class PodClaimSeen:
    """A claim as a pod calls it. ``claim`` is its own name, "" where it is made of ``template`` and nobody has said how it is
    called."""

    name: str
    claim: str = ""
    template: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimSeen:
    """A claim.

    Args:
        owner: uid of the pod for which it was made, and whose ``pod_claim`` it is; "": somebody made it for whoever names it.
        request: what it asks of our driver; None: nothing, or it cannot be said, and ``fault`` why.
        node: where it is allocated; "": it is not.
        held: what it has there, as far as its node has told of these devices.
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
        """Whether it asks our driver for devices, or has some."""
        return bool(self.request is not None or self.fault or self.node)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSeen:
    """A pod that asks for devices.

    Args:
        request: what it asks for; None with ``fault`` when that cannot be read.
        node: where it is bound; "" while it is not. bound_at_s: since when, to the second; 0 when nobody says.
        nominated: the node that its status names.
        plan: the plan in its annotation, when it is one and of this pod.
        gated: our gate holds it. held: somebody else's gate does.
        refused: kube-scheduler tried and found no node.
        finished: it ended. leaving: it is being deleted.
        remade: somebody makes it again when it is deleted. tied: on the same node again, as a DaemonSet does.
        owner: namespace and uid of the owner that makes it again; "": there is none. Owner references are the pod's own word.
        movable: it may be stopped so that its owner makes it again elsewhere.
        own: our kube-scheduler places it, and asks; else somebody does who does not.
        confined: nodes to which its affinity confines it by their names.
        refusal: why its kubelet refused it for good; "" when it did not.
        claims: the claims that it names, whosever devices they ask.
        waits_for: a claim that must come, or be allocated, before anything can be decided; "" for none.
        pins: nodes on which claims that it uses are allocated already.
        rides: all devices that it uses count for others, or it uses none: it has no plan, and its node is not chosen here.
    """

    uid: str
    namespace: str
    name: str
    created_at_s: float
    request: PodRequest | None
    fault: str = ""
    wish: Wish = ANYWHERE
    priority: int = 0
    node: str = ""
    bound_at_s: float = 0.0
    nominated: str = ""
    plan: PodPlan | None = None
    gated: bool = False
    held: bool = False
    refused: bool = False
    finished: bool = False
    leaving: bool = False
    remade: bool = False
    tied: bool = False
    owner: str = ""
    movable: bool = False
    own: bool = True
    confined: tuple[str, ...] = ()
    refusal: str = ""
    claims: tuple[PodClaimSeen, ...] = ()
    waits_for: str = ""
    pins: tuple[str, ...] = ()
    rides: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def by_claims(self) -> bool:
        """Return True if the pod names claims, or asks by one that kube-scheduler makes when it places the pod."""
        return bool(self.claims) or (self.request is not None and self.request.door is NodeDoor.CLAIMS)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSeen:
    """A node. ``taints`` are ``key=value:Effect``; ``offers``: whether its kubelet has tokens for devices to give; ``tokens``:
    how many it counts, those in use among them, None where that is not known; ``door`` is what its label says, "" where it
    has none."""

    name: str
    labels: Mapping[str, str]
    taints: tuple[str, ...] = ()
    schedulable: bool = True
    offers: bool = True
    tokens: int | None = None
    door: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceSeen:
    """A slice that a node's agent has given out. ``memory_mib`` is what it is promised there,
    0 means not capped; ``whole``: nobody may be beside it."""

    pod_uid: str
    device: str
    memory_mib: int
    whole: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuNodeSeen:
    """The devices of a node, as its agent tells. ``schedulable``: whether an administrator lets pods have them; ``door``:
    by which they are asked for, where the node's label does not say."""

    name: str
    devices: tuple[NodeDevice, ...]
    slices: tuple[SliceSeen, ...] = ()
    schedulable: bool = True
    door: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSeen:
    """A queue; amounts are devices, ``limit`` None is unlimited. ``tenant``: whose it is, empty: nobody's; ``pool``: where
    its pods run, empty: on nodes of no pool; ``eviction_grace_s``: how long its pods may take to end when they are evicted,
    None: as long as those of the queue above."""

    name: str
    parent: str = ""
    deserved: float = 0.0
    limit: float | None = None
    weight: float = 1.0
    tenant: str = ""
    pool: str = ""
    eviction_grace_s: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceSeen:
    """Which queue the pods of a namespace are in, and which others they may name. ``isolation`` is the label with the least
    level of its pods; "" where it has none."""

    name: str
    queue: str = ""
    allowed: frozenset[str] = frozenset()
    isolation: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleasePod:
    """Nominate the node, then write the plan and take our gate off. With ``nodes`` the pod is confined to these instead, and
    its plan is written when it is bound."""

    pod: PodName
    plan: PodPlan
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class UngatePod:
    """Take our gate off a pod that has no plan and needs none."""

    pod: PodName


@dataclass(frozen=True, slots=True, kw_only=True)
class WritePlan:
    """Write the plan of a pod that has its node."""

    pod: PodName
    plan: PodPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Nominate:
    """Name the node in the pod's status: it is tried first and alone."""

    pod: PodName
    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictPod:
    """Ask for the pod to be taken away, as budgets allow; ``message`` says for whom.

    Args:
        grace_max_s: the longest time that it is given to end; None: its own.
        owed: its devices are borrowed, and their owner takes them back: a budget that refuses is overruled.
    """

    pod: PodName
    reason: Reason
    message: str
    grace_max_s: int | None = None
    owed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Report why the pod waits, or (``reason`` None) that it has its place. ``own_condition``: the condition is
    ``names.PLANNED``, because kube-scheduler writes the other, ``PodScheduled``."""

    pod: PodName
    reason: Reason | None
    message: str
    own_condition: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPod:
    """A pod that will never run: tell people, and where its owner makes it again (``remade``) have it taken away."""

    pod: PodName
    remade: bool
    message: str


Action = ReleasePod | UngatePod | WritePlan | Nominate | EvictPod | Report | SweepPod
