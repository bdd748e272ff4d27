"""Objects of Kubernetes itself, as narrow as the product needs them. Add a field when it is used, with a default."""

from __future__ import annotations

import msgspec

from calabash.adapters.kube.objects.meta import Kind, KubeStruct, ObjectMeta


class Condition(KubeStruct, frozen=True):
    """What is true of an object; ``status`` is ``True``, ``False`` or ``Unknown``."""

    type: str
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None
    observed_generation: int = 0


class ContainerClaim(KubeStruct, frozen=True):
    """A claim of the pod that a container uses; ``request`` empty means all that the claim has."""

    name: str
    request: str = ""


class ContainerResources(KubeStruct, frozen=True):
    """Amounts as quantities ("8Gi", "500m"); ``model.units`` and the dialects read them."""

    limits: dict[str, str] = msgspec.field(default_factory=dict)
    requests: dict[str, str] = msgspec.field(default_factory=dict)
    claims: tuple[ContainerClaim, ...] = ()


class EnvironmentVariable(KubeStruct, frozen=True):
    """A variable of a container; ``value`` is empty when it comes from elsewhere."""

    name: str
    value: str = ""


class Container(KubeStruct, frozen=True):
    """A container of a pod's spec. ``restart_policy`` is ``Always`` for sidecars among the init containers, else empty."""

    name: str
    image: str = ""
    resources: ContainerResources = ContainerResources()
    restart_policy: str | None = None


class PodSchedulingGate(KubeStruct, frozen=True):
    """While a pod has one, no scheduler looks at it."""

    name: str


class Toleration(KubeStruct, frozen=True):
    """A taint that a pod bears; ``operator`` empty means ``Equal``."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class SelectorRequirement(KubeStruct, frozen=True):
    """``key operator values``, operator one of In, NotIn, Exists, DoesNotExist, Gt, Lt."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


class LabelSelector(KubeStruct, frozen=True):
    """Labels that must be; an empty one selects everything."""

    match_labels: dict[str, str] = msgspec.field(default_factory=dict)
    match_expressions: tuple[SelectorRequirement, ...] = ()


class NodeSelectorTerm(KubeStruct, frozen=True):
    """All of these must hold."""

    match_expressions: tuple[SelectorRequirement, ...] = ()
    match_fields: tuple[SelectorRequirement, ...] = ()


class NodeSelector(KubeStruct, frozen=True):
    """One of these must hold."""

    node_selector_terms: tuple[NodeSelectorTerm, ...] = ()


class NodeAffinity(KubeStruct, frozen=True):
    """Which nodes a pod demands; what it merely prefers is not read."""

    required: NodeSelector | None = msgspec.field(name="requiredDuringSchedulingIgnoredDuringExecution", default=None)


class Affinity(KubeStruct, frozen=True):
    """The part of a pod's affinity that concerns nodes."""

    node_affinity: NodeAffinity | None = None


class SchedulingGroup(KubeStruct, frozen=True):
    """The group of ``scheduling.k8s.io`` that a pod belongs to (Kubernetes 1.36)."""

    pod_group_name: str | None = None


class EmptyDirectory(KubeStruct, frozen=True):
    """A directory of the node that ends with its pod."""


class Volume(KubeStruct, frozen=True):
    """What a pod's containers can mount; of the kinds only the one whose data is lost with the pod."""

    name: str
    empty_dir: EmptyDirectory | None = None


class PodClaim(KubeStruct, frozen=True):
    """A claim as a pod calls it: one that is there, or one that is made for the pod of a template."""

    name: str
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class PodSpec(KubeStruct, frozen=True):
    """What a pod is to be."""

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
    """Not started, and why."""

    reason: str = ""
    message: str = ""


class StateRunning(KubeStruct, frozen=True):
    """Runs since."""

    started_at: str | None = None


class StateTerminated(KubeStruct, frozen=True):
    """Ended, how and when."""

    exit_code: int = 0
    reason: str = ""
    message: str = ""
    finished_at: str | None = None


class ContainerState(KubeStruct, frozen=True):
    """At most one of the three."""

    waiting: StateWaiting | None = None
    running: StateRunning | None = None
    terminated: StateTerminated | None = None


class ContainerStatus(KubeStruct, frozen=True):
    """How a container fares; ``container_id`` is ``containerd://...`` once there is one."""

    name: str
    container_id: str = msgspec.field(name="containerID", default="")
    restart_count: int = 0
    ready: bool = False
    started: bool | None = None
    state: ContainerState = ContainerState()


class PodClaimStatus(KubeStruct, frozen=True):
    """The claim that was made of a template; None: none was needed."""

    name: str
    resource_claim_name: str | None = None


class PodExtendedClaim(KubeStruct, frozen=True):
    """The claim that a scheduler made for extended resources of a pod."""

    resource_claim_name: str = ""


class PodStatus(KubeStruct, frozen=True):
    """How a pod fares; ``phase`` is Pending, Running, Succeeded, Failed or Unknown."""

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
    """A pod."""

    metadata: ObjectMeta
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class Taint(KubeStruct, frozen=True):
    """Keeps pods away that do not bear it; ``effect`` is NoSchedule, PreferNoSchedule or NoExecute."""

    key: str
    value: str = ""
    effect: str = ""


class NodeTraits(KubeStruct, frozen=True):
    """What is installed on a node."""

    kubelet_version: str = ""
    container_runtime_version: str = ""
    kernel_version: str = ""
    architecture: str = ""


class NodeSettings(KubeStruct, frozen=True):
    """The ``spec`` of a node."""

    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()
    provider_id: str = msgspec.field(name="providerID", default="")


class NodeStatus(KubeStruct, frozen=True):
    """What a node has and how it fares."""

    capacity: dict[str, str] = msgspec.field(default_factory=dict)
    allocatable: dict[str, str] = msgspec.field(default_factory=dict)
    conditions: tuple[Condition, ...] = ()
    node_info: NodeTraits = NodeTraits()


class Node(KubeStruct, frozen=True):
    """A node."""

    metadata: ObjectMeta
    spec: NodeSettings = NodeSettings()
    status: NodeStatus = NodeStatus()


class Namespace(KubeStruct, frozen=True):
    """A namespace; its labels name the queue of its pods."""

    metadata: ObjectMeta


class BudgetSpec(KubeStruct, frozen=True):
    """Which pods a budget protects."""

    selector: LabelSelector | None = None


class BudgetStatus(KubeStruct, frozen=True):
    """How many may be disturbed now; pods in ``disrupted_pods`` are counted already (name to time)."""

    disruptions_allowed: int = 0
    observed_generation: int = 0
    disrupted_pods: dict[str, str] = msgspec.field(default_factory=dict)


class PodDisruptionBudget(KubeStruct, frozen=True):
    """How many pods of a kind may be taken away at once."""

    metadata: ObjectMeta
    spec: BudgetSpec = BudgetSpec()
    status: BudgetStatus = BudgetStatus()


class KubeLeaseSpec(KubeStruct, frozen=True):
    """Who leads, for how long; times in microseconds as Kubernetes writes them (``2026-01-02T03:04:05.000000Z``)."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int = 0


class KubeLease(KubeStruct, frozen=True):
    """The lock by which replicas agree on a leader. Write it with ``metadata.resourceVersion`` in the patch."""

    metadata: ObjectMeta
    spec: KubeLeaseSpec = KubeLeaseSpec()


class ObjectReference(KubeStruct, frozen=True):
    """An object that an event is about."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    namespace: str = ""
    uid: str = ""


class KubeEvent(KubeStruct, frozen=True):
    """Something that happened to an object, for people; ``type`` is Normal or Warning."""

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
    """Settings."""

    metadata: ObjectMeta
    data: dict[str, str] = msgspec.field(default_factory=dict)


class Secret(KubeStruct, frozen=True):
    """Secrets, base64 in ``data``."""

    metadata: ObjectMeta
    type: str = "Opaque"
    data: dict[str, str] = msgspec.field(default_factory=dict)


class PriorityClass(KubeStruct, frozen=True):
    """What a name of a priority means."""

    metadata: ObjectMeta
    value: int = 0
    preemption_policy: str | None = None
    global_default: bool = False


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
PRIORITY_CLASS = Kind(
    api_version="scheduling.k8s.io/v1",
    name="PriorityClass",
    plural="priorityclasses",
    namespaced=False,
    type=PriorityClass,
)
