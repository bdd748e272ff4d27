"""Types of the product's own objects in the API server: GpuNode, Queue and Tenant.

Their schemas are in ``charts/calabash/crds``; a test compares both. Names are those of ``model``.
"""

from __future__ import annotations

import msgspec

from calabash.adapters.kube.objects.core import Condition
from calabash.adapters.kube.objects.meta import Kind, KubeStruct, ObjectMeta
from calabash.model.device import REPLICAS

_API = "calabash.dev/v1alpha1"


class GpuNodeMigProfile(KubeStruct, frozen=True):
    """MIG profile of a card, as in ``model.mig``."""

    name: str
    compute: int
    slices: int
    starts: tuple[int, ...]
    limit: int
    memory_mib: int
    media: bool = False


class GpuNodeMigPart(KubeStruct, frozen=True):
    """Compute instance that must not be removed from its card: first compute slice, and number of compute slices."""

    start: int
    compute: int


class GpuNodeMigInstance(KubeStruct, frozen=True):
    """MIG instance that exists on a card, as in ``model.mig``."""

    profile: str
    start: int
    fixed: bool = False
    foreign: bool = False
    parts: tuple[GpuNodeMigPart, ...] = ()


class GpuNodeSlice(KubeStruct, frozen=True):
    """Slice of a device that one container has.

    Args:
        pod: ``namespace/name``.
        mode: sharing mode.
        policy: policy of the compute share, such as ``best-effort``.
        allocation: ID of the allocation to which the slice belongs.
        memory_mib: memory limit; 0 for none.
        spill_mib: part of the limit that may be in host memory.
        core_percent: share of the device's compute.
        memory_used_mib: rounded use; None if the agent does not report it.
        core_used_percent: rounded use in percent of the whole device; None if the agent does not report it.
        profile: MIG profile; "" for a slice of a whole device.
        start, part: first memory slice of the MIG instance, and first compute slice in it; -1 for none.
    """

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
        """Guaranteed share of the device's compute.

        It is 0 with policy ``best-effort``: there ``core_percent`` is accounted, but not guaranteed.
        """
        return 0 if self.policy == "best-effort" else self.core_percent


class GpuNodeOrder(KubeStruct, frozen=True):
    """Operation on a device; ``what`` is ``test``, ``reset`` or ``undrain``. The agent does it once for each ``id``."""

    id: str
    what: str


BEGUN, DONE, FAILED = "begun", "done", "failed"


class GpuNodeOutcome(KubeStruct, frozen=True):
    """Result of an order; ``state`` is ``BEGUN``, ``DONE`` or ``FAILED``."""

    id: str
    what: str
    state: str
    message: str = ""


class GpuNodeDeviceSpec(KubeStruct, frozen=True):
    """Settings of an administrator for one device; ``drained`` with a ``reason`` keeps new pods off the device."""

    drained: bool = False
    reason: str = ""
    order: GpuNodeOrder | None = None


class GpuNodeDevice(KubeStruct, frozen=True):
    """Device of a node.

    Args:
        modes: modes that the device supports.
        mode: the mode in force; "" if the device is idle.
        reason: cause why the device is not healthy or gets no pods; "" if there is none.
        state: state of a device that is not healthy; "" for a healthy one.
        order: result of the last order for the device.
        foreign_mib: memory in use by unmanaged processes.
        memory_used_mib, utilization_percent: rounded figures of the driver; None if not reported.
        spill_mib: host memory that the node gives to all slices together for what does not fit on its devices.
        replicas: number of containers that may share the device by time.
        mig_profiles: MIG profiles that the card supports.
        mig_instances: MIG instances that exist on it.
    """

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
    """Summary for ``kubectl get gpunodes``.

    Args:
        devices: healthy and all devices, as "7/8".
        memory: allocated and all memory, as "96/640 GiB".
        slices: number of slices.
    """

    devices: str = ""
    model: str = ""
    memory: str = ""
    slices: int = 0


class GpuNodeStatus(KubeStruct, frozen=True):
    """Status of a node's devices, reported by its agent. Times are RFC 3339.

    Args:
        observed_at: when the list of devices last changed.
        used_at: when the reported use was read.
        allocation_api: allocation API of the devices, ``tokens`` or ``claims``; the node's label takes precedence.
    """

    agent_version: str = ""
    driver_version: str = ""
    cuda_version: str = ""
    observed_at: str | None = None
    used_at: str | None = None
    allocation_api: str = msgspec.field(name="door", default="")
    summary: GpuNodeSummary | None = None
    conditions: tuple[Condition, ...] = ()
    devices: tuple[GpuNodeDevice, ...] = ()


class GpuNodeSpec(KubeStruct, frozen=True):
    """Settings of an administrator for the node's devices.

    Args:
        unschedulable: True if no further pod shall get any of the devices.
        devices: settings of single devices, by UUID.
    """

    unschedulable: bool = False
    devices: dict[str, GpuNodeDeviceSpec] = msgspec.field(default_factory=dict)


class GpuNode(KubeStruct, frozen=True):
    """Devices of the node with the same name; cluster scoped."""

    metadata: ObjectMeta
    spec: GpuNodeSpec = GpuNodeSpec()
    status: GpuNodeStatus = GpuNodeStatus()


class KubeQueueSpec(KubeStruct, frozen=True):
    """Settings of a queue; amounts are numbers of devices.

    Args:
        parent: name of the parent queue; "" for a queue at the top.
        deserved: amount that is guaranteed to the queue.
        limit: greatest amount that the queue may have; None is unlimited.
        weight: weight of the queue when capacity beyond the deserved amounts is divided.
        users, groups: users and groups that may submit to the queue.
    """

    parent: str = ""
    deserved: float = 0.0
    limit: float | None = None
    weight: float = 1.0
    priority: int = 0
    eviction_grace_seconds: int | None = None
    users: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()


class KubeQueueStatus(KubeStruct, frozen=True):
    """State of a queue that the planner last saw; amounts in devices. A parent has the sums of its children.

    Args:
        allocated: in use.
        guaranteed: in use within the queue's own share.
        borrowed: in use beyond the queue's own share.
        pending: requested by waiting pods.
        waiting: number of pods that wait for devices.
        running: number of pods that have devices.
        message: why the planner does not use the queue; "" if it does.
        half_life_seconds: half-life of past use. The fields below it are set only if past use counts.
        fair_share: what the queue may have now, by guarantee and weight.
        effective_weight: weight after the correction by past use, if all siblings asked for devices.
        past_use_device_seconds: past use above the guarantee, at ``past_use_at``.
    """

    allocated: float = 0.0
    guaranteed: float = 0.0
    borrowed: float = 0.0
    pending: float = 0.0
    memory_mib: int = 0
    waiting: int = 0
    running: int = 0
    message: str = ""
    half_life_seconds: float | None = None
    fair_share: float | None = None
    effective_weight: float | None = None
    past_use_device_seconds: float | None = None
    past_use_at: str = ""


class KubeQueue(KubeStruct, frozen=True):
    """Queue; cluster scoped. Namespaces name theirs by the label ``calabash.dev/queue``."""

    metadata: ObjectMeta
    spec: KubeQueueSpec = KubeQueueSpec()
    status: KubeQueueStatus = KubeQueueStatus()


class KubeProject(KubeStruct, frozen=True):
    """Project of a tenant. Amounts are numbers of devices of the tenant; ``limit`` None is the limit of the tenant."""

    name: str
    guarantee: float = 0.0
    limit: float | None = None
    weight: float = 1.0


class KubeTenantSpec(KubeStruct, frozen=True):
    """Settings of a tenant; amounts are devices, ``limit`` None is unlimited, ``budget`` like ``5000EUR``."""

    guarantee: float = 0.0
    limit: float | None = None
    weight: float = 1.0
    budget: str = ""
    projects: tuple[KubeProject, ...] = ()


class KubeTenantStatus(KubeStruct, frozen=True):
    """State of a tenant that the server last saw.

    Args:
        allocated: devices in use.
        borrowed: devices in use beyond the guarantee.
        waiting: pods that wait.
        namespaces: namespaces in the tenant's queues.
        conditions: ``Ready`` is true if the queues match the tenant's spec.
    """

    observed_generation: int = 0
    allocated: float = 0.0
    borrowed: float = 0.0
    waiting: int = 0
    namespaces: int = 0
    conditions: tuple[Condition, ...] = ()


class KubeTenant(KubeStruct, frozen=True):
    """Tenant; cluster scoped. Its queues are ``NAME``, ``NAME.default`` and ``NAME.PROJECT``."""

    metadata: ObjectMeta
    spec: KubeTenantSpec = KubeTenantSpec()
    status: KubeTenantStatus = KubeTenantStatus()


GPU_NODE = Kind(api_version=_API, name="GpuNode", plural="gpunodes", namespaced=False, type=GpuNode)
QUEUE = Kind(api_version=_API, name="Queue", plural="queues", namespaced=False, type=KubeQueue)
TENANT = Kind(api_version=_API, name="Tenant", plural="tenants", namespaced=False, type=KubeTenant)
