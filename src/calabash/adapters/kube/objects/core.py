"""Types of built-in Kubernetes objects, with the fields that the product uses.

Add a field when it is used, with a default.
"""

from __future__ import annotations

import msgspec

from calabash.adapters.kube.objects.meta import Kind, KubeStruct, ObjectMeta


class Condition(KubeStruct, frozen=True):
    """Condition of an object; ``status`` is ``True``, ``False`` or ``Unknown``."""

    type: str
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None
    observed_generation: int = 0


class ContainerClaim(KubeStruct, frozen=True):
    """Claim of the pod that a container uses; an empty ``request`` means all requests of the claim."""

    name: str
    request: str = ""


class ContainerResources(KubeStruct, frozen=True):
    """Amounts as quantities ("8Gi", "500m"), which ``model.units`` and the dialects parse."""

    limits: dict[str, str] = msgspec.field(default_factory=dict)
    requests: dict[str, str] = msgspec.field(default_factory=dict)
    claims: tuple[ContainerClaim, ...] = ()


class Container(KubeStruct, frozen=True):
    """Container of a pod's spec; ``restart_policy`` is ``Always`` for an init container that is a sidecar, else empty."""

    name: str
    image: str = ""
    resources: ContainerResources = ContainerResources()
    restart_policy: str | None = None


class PodSchedulingGate(KubeStruct, frozen=True):
    """Scheduling gate: a pod that has one is not scheduled."""

    name: str


class Toleration(KubeStruct, frozen=True):
    """Toleration of a pod, which lets it run on nodes with the taint; an empty ``operator`` means ``Equal``."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class SelectorRequirement(KubeStruct, frozen=True):
    """Requirement ``key operator values``; the operator is In, NotIn, Exists, DoesNotExist, Gt or Lt."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


class LabelSelector(KubeStruct, frozen=True):
    """Required labels; an empty selector selects all objects."""

    match_labels: dict[str, str] = msgspec.field(default_factory=dict)
    match_expressions: tuple[SelectorRequirement, ...] = ()


class NodeSelectorTerm(KubeStruct, frozen=True):
    """Requirements that must all hold."""

    match_expressions: tuple[SelectorRequirement, ...] = ()
    match_fields: tuple[SelectorRequirement, ...] = ()


class NodeSelector(KubeStruct, frozen=True):
    """Terms of which one must hold."""

    node_selector_terms: tuple[NodeSelectorTerm, ...] = ()


class NodeAffinity(KubeStruct, frozen=True):
    """Node affinity that a pod requires; preferences are not read."""

    required: NodeSelector | None = msgspec.field(name="requiredDuringSchedulingIgnoredDuringExecution", default=None)


class Affinity(KubeStruct, frozen=True):
    """Affinity of a pod to nodes."""

    node_affinity: NodeAffinity | None = None


class SchedulingGroup(KubeStruct, frozen=True):
    """Group of ``scheduling.k8s.io`` that a pod belongs to (Kubernetes 1.36)."""

    pod_group_name: str | None = None


class EmptyDirectory(KubeStruct, frozen=True):
    """Directory of the node that is deleted with its pod."""


class Volume(KubeStruct, frozen=True):
    """Volume of a pod; only ``emptyDir``, whose data is lost with the pod, is read."""

    name: str
    empty_dir: EmptyDirectory | None = None


class PodClaim(KubeStruct, frozen=True):
    """Claim of a pod: an existing one, or one that is created from a template."""

    name: str
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class PodSpec(KubeStruct, frozen=True):
    """Desired state of a pod: the field ``spec``."""

    node_name: str = ""
    scheduler_name: str = ""
    scheduling_gates: tuple[PodSchedulingGate, ...] = ()
    scheduling_group: SchedulingGroup | None = None
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    ephemeral_containers: tuple[Container, ...] = ()
    node_selector: dict[str, str] = msgspec.field(default_factory=dict)
    affinity: Affinity | None = None
    tolerations: tuple[Toleration, ...] = ()
    overhead: dict[str, str] = msgspec.field(default_factory=dict)
    volumes: tuple[Volume, ...] = ()
    priority: int | None = None
    priority_class_name: str = ""
    preemption_policy: str | None = None
    restart_policy: str = ""
    runtime_class_name: str | None = None
    termination_grace_period_seconds: int | None = None
    host_users: bool | None = None
    resource_claims: tuple[PodClaim, ...] = ()


class StateWaiting(KubeStruct, frozen=True):
    """State of a container that has not started, with the reason."""

    reason: str = ""
    message: str = ""


class StateRunning(KubeStruct, frozen=True):
    """State of a running container."""

    started_at: str | None = None


class StateTerminated(KubeStruct, frozen=True):
    """State of an ended container."""

    exit_code: int = 0
    reason: str = ""
    message: str = ""
    finished_at: str | None = None


class ContainerState(KubeStruct, frozen=True):
    """State of a container; at most one field is set."""

    waiting: StateWaiting | None = None
    running: StateRunning | None = None
    terminated: StateTerminated | None = None


class ContainerStatus(KubeStruct, frozen=True):
    """Status of a container; ``container_id`` is ``containerd://...`` once the container exists."""

    name: str
    container_id: str = msgspec.field(name="containerID", default="")
    restart_count: int = 0
    ready: bool = False
    started: bool | None = None
    state: ContainerState = ContainerState()


class PodClaimStatus(KubeStruct, frozen=True):
    """Claim that was created from a template for the pod's claim ``name``.

    ``resource_claim_name`` is None if no claim had to be created.
    """

    name: str
    resource_claim_name: str | None = None


class PodExtendedClaim(KubeStruct, frozen=True):
    """Claim that a scheduler created for extended resources of a pod."""

    resource_claim_name: str = ""


class PodStatus(KubeStruct, frozen=True):
    """Status of a pod; ``phase`` is Pending, Running, Succeeded, Failed or Unknown."""

    phase: str = ""
    reason: str = ""
    message: str = ""
    nominated_node_name: str = ""
    conditions: tuple[Condition, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    ephemeral_container_statuses: tuple[ContainerStatus, ...] = ()
    start_time: str | None = None
    resource_claim_statuses: tuple[PodClaimStatus, ...] = ()
    extended_resource_claim_status: PodExtendedClaim | None = None


class Pod(KubeStruct, frozen=True):
    """Pod."""

    metadata: ObjectMeta
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class Taint(KubeStruct, frozen=True):
    """Taint of a node; ``effect`` is NoSchedule, PreferNoSchedule or NoExecute."""

    key: str
    value: str = ""
    effect: str = ""


class NodeTraits(KubeStruct, frozen=True):
    """Versions of the software on a node, and its architecture."""

    kubelet_version: str = ""
    container_runtime_version: str = ""
    kernel_version: str = ""
    architecture: str = ""


class NodeSettings(KubeStruct, frozen=True):
    """Desired state of a node: the field ``spec``."""

    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()
    provider_id: str = msgspec.field(name="providerID", default="")


class NodeStatus(KubeStruct, frozen=True):
    """Capacity and conditions of a node."""

    capacity: dict[str, str] = msgspec.field(default_factory=dict)
    allocatable: dict[str, str] = msgspec.field(default_factory=dict)
    conditions: tuple[Condition, ...] = ()
    node_info: NodeTraits = NodeTraits()


class Node(KubeStruct, frozen=True):
    """Node."""

    metadata: ObjectMeta
    spec: NodeSettings = NodeSettings()
    status: NodeStatus = NodeStatus()


class Namespace(KubeStruct, frozen=True):
    """Namespace. A label of the namespace names the queue of its pods."""

    metadata: ObjectMeta


class BudgetSpec(KubeStruct, frozen=True):
    """Selector of the pods that a disruption budget protects."""

    selector: LabelSelector | None = None


class BudgetStatus(KubeStruct, frozen=True):
    """Number of pods that may be disrupted now.

    ``disrupted_pods`` has the pods that were evicted a moment ago, with the time; ``disruptions_allowed`` is already
    reduced by them.
    """

    disruptions_allowed: int = 0
    observed_generation: int = 0
    disrupted_pods: dict[str, str] = msgspec.field(default_factory=dict)


class PodDisruptionBudget(KubeStruct, frozen=True):
    """Limit on the number of selected pods that may be disrupted at once."""

    metadata: ObjectMeta
    spec: BudgetSpec = BudgetSpec()
    status: BudgetStatus = BudgetStatus()


class KubeLeaseSpec(KubeStruct, frozen=True):
    """Holder and duration of a lease; times have microseconds (``2026-01-02T03:04:05.000000Z``)."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int = 0


class KubeLease(KubeStruct, frozen=True):
    """Lease by which replicas elect a leader. Patch it with ``metadata.resourceVersion``."""

    metadata: ObjectMeta
    spec: KubeLeaseSpec = KubeLeaseSpec()


class ObjectReference(KubeStruct, frozen=True):
    """Object that an event is about."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    namespace: str = ""
    uid: str = ""


class KubeEvent(KubeStruct, frozen=True):
    """Event of an object, for people; ``type`` is Normal or Warning."""

    metadata: ObjectMeta
    involved_object: ObjectReference
    type: str = "Normal"
    reason: str = ""
    message: str = ""
    count: int = 1
    first_timestamp: str | None = None
    last_timestamp: str | None = None
    reporting_component: str = ""
    reporting_instance: str = ""


class ConfigMap(KubeStruct, frozen=True):
    """ConfigMap."""

    metadata: ObjectMeta
    data: dict[str, str] = msgspec.field(default_factory=dict)


class Secret(KubeStruct, frozen=True):
    """Secret; values of ``data`` are base64."""

    metadata: ObjectMeta
    type: str = "Opaque"
    data: dict[str, str] = msgspec.field(default_factory=dict)


POD = Kind(api_version="v1", name="Pod", plural="pods", namespaced=True, type=Pod)
NODE = Kind(api_version="v1", name="Node", plural="nodes", namespaced=False, type=Node)
NAMESPACE = Kind(api_version="v1", name="Namespace", plural="namespaces", namespaced=False, type=Namespace)
EVENT = Kind(api_version="v1", name="Event", plural="events", namespaced=True, type=KubeEvent)
CONFIG_MAP = Kind(api_version="v1", name="ConfigMap", plural="configmaps", namespaced=True, type=ConfigMap)
SECRET = Kind(api_version="v1", name="Secret", plural="secrets", namespaced=True, type=Secret)
PDB = Kind(
    api_version="policy/v1",
    name="PodDisruptionBudget",
    plural="poddisruptionbudgets",
    namespaced=True,
    type=PodDisruptionBudget,
)
LEASE = Kind(api_version="coordination.k8s.io/v1", name="Lease", plural="leases", namespaced=True, type=KubeLease)
