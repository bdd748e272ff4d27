"""Objects of ``resource.k8s.io/v1``: what a node has to give, what is asked of it, and what was allocated.

Quantities are strings as the API server writes them; opaque parameters are JSON values that nobody has looked at yet.
"""

from __future__ import annotations

from typing import Any

import msgspec

from calabash.adapters.kube.objects.core import Condition, NodeSelector
from calabash.adapters.kube.objects.meta import Kind, KubeStruct, ObjectMeta

_API = "resource.k8s.io/v1"


class DeviceAttribute(KubeStruct, frozen=True):
    """Exactly one of these; ``version`` is one of semver 2.0."""

    int_: int | None = msgspec.field(name="int", default=None)
    bool_: bool | None = msgspec.field(name="bool", default=None)
    string: str | None = None
    version: str | None = None


class CapacityRange(KubeStruct, frozen=True):
    """What may be consumed: ``min`` plus whole ``step``; what was asked is rounded up to the next such value."""

    min: str | None = None
    max: str | None = None
    step: str | None = None


class CapacityRequestPolicy(KubeStruct, frozen=True):
    """How much of a capacity one allocation consumes; ``default`` is for who asks for none."""

    default: str | None = None
    valid_values: tuple[str, ...] = ()
    valid_range: CapacityRange | None = None


class DeviceCapacity(KubeStruct, frozen=True):
    """How much there is; divided among allocations where the device allows several."""

    value: str
    request_policy: CapacityRequestPolicy | None = None


class DeviceCounter(KubeStruct, frozen=True):
    """An amount of a counter set."""

    value: str


class CounterSet(KubeStruct, frozen=True):
    """What the devices that are cut from one card take from."""

    name: str
    counters: dict[str, DeviceCounter] = msgspec.field(default_factory=dict)


class CounterConsumption(KubeStruct, frozen=True):
    """What a device takes of a set while it is allocated, once, however often."""

    counter_set: str
    counters: dict[str, DeviceCounter] = msgspec.field(default_factory=dict)


class DeviceTaint(KubeStruct, frozen=True):
    """Keeps claims away that do not bear it; ``effect`` is None, NoSchedule or NoExecute."""

    key: str
    value: str = ""
    effect: str = ""
    time_added: str | None = None


class SliceDevice(KubeStruct, frozen=True):
    """Something that can be allocated. Names of attributes and capacities without a domain are the driver's."""

    name: str
    attributes: dict[str, DeviceAttribute] = msgspec.field(default_factory=dict)
    capacity: dict[str, DeviceCapacity] = msgspec.field(default_factory=dict)
    consumes_counters: tuple[CounterConsumption, ...] = ()
    taints: tuple[DeviceTaint, ...] = ()
    allow_multiple_allocations: bool | None = None


class ResourcePool(KubeStruct, frozen=True):
    """Slices of one generation belong together; all others of the pool are obsolete."""

    name: str
    generation: int = msgspec.field(default=0)
    resource_slice_count: int = 0


class ResourceSliceSpec(KubeStruct, frozen=True):
    """A part of a pool: devices, counter sets, or on older servers both."""

    driver: str
    pool: ResourcePool
    node_name: str | None = None
    devices: tuple[SliceDevice, ...] = ()
    shared_counters: tuple[CounterSet, ...] = ()


class ResourceSlice(KubeStruct, frozen=True):
    """What a driver has to give on a node; cluster scoped."""

    metadata: ObjectMeta
    spec: ResourceSliceSpec


class CelSelector(KubeStruct, frozen=True):
    """An expression of which the scheduler knows the meaning."""

    expression: str = ""


class DeviceSelector(KubeStruct, frozen=True):
    """Which devices are acceptable."""

    cel: CelSelector | None = None


class DeviceToleration(KubeStruct, frozen=True):
    """A taint that a request bears; ``operator`` empty means ``Equal``."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class CapacityRequirements(KubeStruct, frozen=True):
    """Amounts of each device, by the capacity's name."""

    requests: dict[str, str] = msgspec.field(default_factory=dict)


class ExactDeviceRequest(KubeStruct, frozen=True):
    """Devices of one class; ``allocation_mode`` is ExactCount or All."""

    device_class_name: str = ""
    selectors: tuple[DeviceSelector, ...] = ()
    allocation_mode: str = ""
    count: int = 0
    admin_access: bool | None = None
    tolerations: tuple[DeviceToleration, ...] = ()
    capacity: CapacityRequirements | None = None


class DeviceSubRequest(KubeStruct, frozen=True):
    """One of several ways to answer a request."""

    name: str
    device_class_name: str = ""
    selectors: tuple[DeviceSelector, ...] = ()
    allocation_mode: str = ""
    count: int = 0
    tolerations: tuple[DeviceToleration, ...] = ()
    capacity: CapacityRequirements | None = None


class DeviceRequest(KubeStruct, frozen=True):
    """``exactly`` these, or the first of ``first_available`` that can be had."""

    name: str
    exactly: ExactDeviceRequest | None = None
    first_available: tuple[DeviceSubRequest, ...] = ()


class DeviceConstraint(KubeStruct, frozen=True):
    """What the devices of these requests, or of all, have in common, or what tells them apart."""

    requests: tuple[str, ...] = ()
    match_attribute: str | None = None
    distinct_attribute: str | None = None


class OpaqueConfig(KubeStruct, frozen=True):
    """Words for one driver, which Kubernetes does not read."""

    driver: str
    parameters: Any = None


class DeviceConfig(KubeStruct, frozen=True):
    """Words for the drivers of these requests, or of all."""

    requests: tuple[str, ...] = ()
    opaque: OpaqueConfig | None = None


class DeviceClaim(KubeStruct, frozen=True):
    """What is asked."""

    requests: tuple[DeviceRequest, ...] = ()
    constraints: tuple[DeviceConstraint, ...] = ()
    config: tuple[DeviceConfig, ...] = ()


class ResourceClaimSpec(KubeStruct, frozen=True):
    """The ``spec`` of a claim; it never changes."""

    devices: DeviceClaim = DeviceClaim()


class AllocatedDevice(KubeStruct, frozen=True):
    """A device, or a share of one, that a request was given. ``request`` is ``NAME``, or ``NAME/SUBREQUEST``."""

    request: str
    driver: str
    pool: str
    device: str
    admin_access: bool | None = None
    tolerations: tuple[DeviceToleration, ...] = ()
    share_id: str | None = msgspec.field(name="shareID", default=None)
    consumed_capacity: dict[str, str] = msgspec.field(default_factory=dict)


class AllocatedConfig(KubeStruct, frozen=True):
    """Words for a driver; ``source`` is FromClass or FromClaim."""

    source: str = ""
    requests: tuple[str, ...] = ()
    opaque: OpaqueConfig | None = None


class AllocatedDevices(KubeStruct, frozen=True):
    """All that was allocated to a claim, of every driver."""

    results: tuple[AllocatedDevice, ...] = ()
    config: tuple[AllocatedConfig, ...] = ()


class ClaimAllocation(KubeStruct, frozen=True):
    """What the scheduler decided, and on which nodes it can be used."""

    devices: AllocatedDevices = AllocatedDevices()
    node_selector: NodeSelector | None = None
    allocation_timestamp: str | None = None


class ClaimConsumer(KubeStruct, frozen=True):
    """Who may use a claim; ``resource`` is ``pods`` for a pod."""

    api_group: str = ""
    resource: str = ""
    name: str = ""
    uid: str = ""


class AllocatedDeviceStatus(KubeStruct, frozen=True):
    """What the driver says of a device that was allocated."""

    driver: str
    pool: str
    device: str
    share_id: str | None = msgspec.field(name="shareID", default=None)
    conditions: tuple[Condition, ...] = ()
    data: Any = None


class ResourceClaimStatus(KubeStruct, frozen=True):
    """``allocation`` None: nothing is allocated. Each writer has a part of its own."""

    allocation: ClaimAllocation | None = None
    reserved_for: tuple[ClaimConsumer, ...] = ()
    devices: tuple[AllocatedDeviceStatus, ...] = ()


class ResourceClaim(KubeStruct, frozen=True):
    """What pods ask together; namespaced."""

    metadata: ObjectMeta
    spec: ResourceClaimSpec = ResourceClaimSpec()
    status: ResourceClaimStatus = ResourceClaimStatus()


class ResourceClaimTemplateSpec(KubeStruct, frozen=True):
    """What each claim that is made of it is to be."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ResourceClaimSpec = ResourceClaimSpec()


class ResourceClaimTemplate(KubeStruct, frozen=True):
    """Of which every pod gets a claim of its own; namespaced."""

    metadata: ObjectMeta
    spec: ResourceClaimTemplateSpec = ResourceClaimTemplateSpec()


class DeviceClassSpec(KubeStruct, frozen=True):
    """Which devices, with which words for their driver; ``extended_resource_name`` is how containers may ask for one."""

    selectors: tuple[DeviceSelector, ...] = ()
    config: tuple[DeviceConfig, ...] = ()
    extended_resource_name: str | None = None


class DeviceClass(KubeStruct, frozen=True):
    """What an administrator lets claims ask for; cluster scoped."""

    metadata: ObjectMeta
    spec: DeviceClassSpec = DeviceClassSpec()


RESOURCE_SLICE = Kind(
    api_version=_API, name="ResourceSlice", plural="resourceslices", namespaced=False, type=ResourceSlice
)
RESOURCE_CLAIM = Kind(
    api_version=_API, name="ResourceClaim", plural="resourceclaims", namespaced=True, type=ResourceClaim
)
RESOURCE_CLAIM_TEMPLATE = Kind(
    api_version=_API,
    name="ResourceClaimTemplate",
    plural="resourceclaimtemplates",
    namespaced=True,
    type=ResourceClaimTemplate,
)
DEVICE_CLASS = Kind(api_version=_API, name="DeviceClass", plural="deviceclasses", namespaced=False, type=DeviceClass)
