"""The product's own objects in the API server: what a node's agent tells of its devices, the queues, and the tenants.

Their schemas are in ``charts/calabash/crds``; a test holds both to each other. Names are those of ``model``.
"""

from __future__ import annotations

import msgspec

from calabash.adapters.kube.objects.core import Condition
from calabash.adapters.kube.objects.meta import Kind, KubeStruct, ObjectMeta
from calabash.model.device import REPLICAS

_API = "calabash.dev/v1alpha1"


class GpuNodeMigProfile(KubeStruct, frozen=True):
    """A way to cut a card by MIG, as in ``model.mig``."""

    name: str
    compute: int
    slices: int
    starts: tuple[int, ...]
    limit: int
    memory_mib: int
    media: bool = False


class GpuNodeMigPart(KubeStruct, frozen=True):
    """A part of an instance that has to stay as it is: its first compute slice, and how many they are."""

    start: int
    compute: int


class GpuNodeMigInstance(KubeStruct, frozen=True):
    """A MIG instance that stands on a card, as in ``model.mig``."""

    profile: str
    start: int
    fixed: bool = False
    foreign: bool = False
    parts: tuple[GpuNodeMigPart, ...] = ()


class GpuNodeSlice(KubeStruct, frozen=True):
    """What one container holds of a device. ``pod`` is ``namespace/name``; ``memory_mib`` 0 means not capped, ``spill_mib``
    of it need not lie on the device. What is used of it is told coarsely: ``core_used_percent`` of the whole device; None
    where the agent does not tell."""

    pod: str
    pod_uid: str
    container: str
    mode: str
    policy: str
    allocation: str
    memory_mib: int = 0
    spill_mib: int = 0
    core_percent: int = 0
    memory_used_mib: int | None = None
    core_used_percent: int | None = None
    profile: str = ""
    start: int = -1
    part: int = -1

    @property
    def promised_percent(self) -> int:
        """The compute that is promised: none with policy ``best-effort``, of which ``core_percent`` is the accounted share."""
        return 0 if self.policy == "best-effort" else self.core_percent


class GpuNodeOrder(KubeStruct, frozen=True):
    """Something that is to be done with a device, once for each ``id``: ``test``, ``reset`` or ``undrain``."""

    id: str
    what: str


BEGUN, DONE, FAILED = "begun", "done", "failed"


class GpuNodeOutcome(KubeStruct, frozen=True):
    """What became of an order: ``BEGUN``, ``DONE`` or ``FAILED``."""

    id: str
    what: str
    state: str
    message: str = ""


class GpuNodeCare(KubeStruct, frozen=True):
    """What an administrator wants of one device: ``drained``: nothing new is placed on it, for ``reason``."""

    drained: bool = False
    reason: str = ""
    order: GpuNodeOrder | None = None


class GpuNodeDevice(KubeStruct, frozen=True):
    """A device. ``modes`` are those it can have, ``mode`` the one in force ("" when idle); ``foreign_mib`` is memory in
    use by processes that nobody was given; what the driver says of its use is told coarsely, None where it is not.
    ``state`` says more where it is not healthy, ``order`` what became of the last order for it. ``spill_mib`` is the host
    memory that the node gives, to all slices together, for what does not fit on its devices; ``replicas`` is how many
    containers may use it in turns; ``mig_profiles`` say how it can be cut, ``mig_instances`` how it is."""

    uuid: str
    index: int
    model: str
    memory_mib: int
    health: str
    numa_node: int = -1
    pci_bus_id: str = ""
    nvlink_peers: tuple[str, ...] = ()
    reason: str = ""
    state: str = ""
    order: GpuNodeOutcome | None = None
    modes: tuple[str, ...] = ()
    mode: str = ""
    slices: tuple[GpuNodeSlice, ...] = ()
    foreign_mib: int = 0
    spill_mib: int = 0
    replicas: int = REPLICAS
    memory_used_mib: int | None = None
    utilization_percent: int | None = None
    mig_profiles: tuple[GpuNodeMigProfile, ...] = ()
    mig_instances: tuple[GpuNodeMigInstance, ...] = ()


class GpuNodeSummary(KubeStruct, frozen=True):
    """The same in words, for ``kubectl get gpunodes``: "7/8" devices healthy, "96/640 GiB" given."""

    devices: str = ""
    model: str = ""
    memory: str = ""
    slices: int = 0


class GpuNodeStatus(KubeStruct, frozen=True):
    """What the agent of a node sees. ``observed_at`` is when the device list last changed, ``used_at`` when the use that
    it tells was read; RFC 3339. ``door``: by which its devices are asked for, ``tokens`` or ``claims``; the node's label wins.
    """

    agent_version: str = ""
    driver_version: str = ""
    cuda_version: str = ""
    observed_at: str | None = None
    used_at: str | None = None
    door: str = ""
    summary: GpuNodeSummary | None = None
    conditions: tuple[Condition, ...] = ()
    devices: tuple[GpuNodeDevice, ...] = ()


class GpuNodeSpec(KubeStruct, frozen=True):
    """What an administrator wants of the node's devices: ``unschedulable``: no pod is given any of them from now on;
    ``devices`` are wishes for single ones, by UUID."""

    unschedulable: bool = False
    devices: dict[str, GpuNodeCare] = msgspec.field(default_factory=dict)


class GpuNode(KubeStruct, frozen=True):
    """The devices of the node of the same name; cluster scoped."""

    metadata: ObjectMeta
    spec: GpuNodeSpec = GpuNodeSpec()
    status: GpuNodeStatus = GpuNodeStatus()


class KubeQueueSpec(KubeStruct, frozen=True):
    """A queue as an administrator set it; amounts are devices, ``limit`` None is unlimited."""

    parent: str = ""
    deserved: float = 0.0
    limit: float | None = None
    weight: float = 1.0
    priority: int = 0
    eviction_grace_seconds: int | None = None
    users: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()


class KubeQueueStatus(KubeStruct, frozen=True):
    """What the planner last saw, in devices: in use, its own now, in use beyond that, asked for by who waits; the memory in
    use; pods that wait for devices and that have them; why the planner does not use the queue, empty where it does. A parent
    has the sums of what is below it."""

    allocated: float = 0.0
    guaranteed: float = 0.0
    borrowed: float = 0.0
    pending: float = 0.0
    memory_mib: int = 0
    waiting: int = 0
    running: int = 0
    message: str = ""


class KubeQueue(KubeStruct, frozen=True):
    """A queue; cluster scoped. Namespaces name theirs by the label ``calabash.dev/queue``."""

    metadata: ObjectMeta
    spec: KubeQueueSpec = KubeQueueSpec()
    status: KubeQueueStatus = KubeQueueStatus()


class KubeProject(KubeStruct, frozen=True):
    """A part of a tenant; amounts are devices of the tenant's, ``limit`` None is the tenant's."""

    name: str
    guarantee: float = 0.0
    limit: float | None = None
    weight: float = 1.0


class KubeTenantSpec(KubeStruct, frozen=True):
    """A tenant as an administrator set it; amounts are devices, ``limit`` None is unlimited, ``budget`` like ``5000EUR``."""

    guarantee: float = 0.0
    limit: float | None = None
    weight: float = 1.0
    budget: str = ""
    projects: tuple[KubeProject, ...] = ()


class KubeTenantStatus(KubeStruct, frozen=True):
    """What the server last saw: devices in use and of these beyond its guarantee, pods that wait, namespaces in its queues.
    The condition ``Ready`` says whether its queues are as it wants them, and else why not."""

    observed_generation: int = 0
    allocated: float = 0.0
    borrowed: float = 0.0
    waiting: int = 0
    namespaces: int = 0
    conditions: tuple[Condition, ...] = ()


class KubeTenant(KubeStruct, frozen=True):
    """A tenant; cluster scoped. Its queues are ``NAME``, ``NAME.default`` and ``NAME.PROJECT``."""

    metadata: ObjectMeta
    spec: KubeTenantSpec = KubeTenantSpec()
    status: KubeTenantStatus = KubeTenantStatus()


GPU_NODE = Kind(api_version=_API, name="GpuNode", plural="gpunodes", namespaced=False, type=GpuNode)
QUEUE = Kind(api_version=_API, name="Queue", plural="queues", namespaced=False, type=KubeQueue)
TENANT = Kind(api_version=_API, name="Tenant", plural="tenants", namespaced=False, type=KubeTenant)
