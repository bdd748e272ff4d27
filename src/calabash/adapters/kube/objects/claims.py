"""Types of ``resource.k8s.io/v1``: devices that nodes offer, claims, and their allocations.

Quantities are strings as the API server writes them; opaque parameters are JSON values that have not been validated.
"""

from __future__ import annotations

from typing import Any

import msgspec

from calabash.adapters.kube.objects.core import Condition, NodeSelector
from calabash.adapters.kube.objects.meta import Kind, KubeStruct, ObjectMeta

_API = "resource.k8s.io/v1"


class DeviceAttribute(KubeStruct, frozen=True):
    """Attribute of a device.

    Exactly one field is set; ``version`` is a version as defined by Semantic Versioning 2.0.
    """

    int_: int | None = msgspec.field(name="int", default=None)
    bool_: bool | None = msgspec.field(name="bool", default=None)
    string: str | None = None
    version: str | None = None


class CapacityRange(KubeStruct, frozen=True):
    """Amounts of a capacity that can be allocated: ``min`` plus a number of steps, up to ``max``.

    A requested amount between two steps is rounded up.
    """

    min: str | None = None
    max: str | None = None
    step: str | None = None


class CapacityRequestPolicy(KubeStruct, frozen=True):
    """Amounts of a capacity that one allocation may consume; ``default`` is for a request without an amount."""

    default: str | None = None
    valid_values: tuple[str, ...] = ()
    valid_range: CapacityRange | None = None


class DeviceCapacity(KubeStruct, frozen=True):
    """Capacity of a device, divided among allocations if the device allows several."""

    value: str
    request_policy: CapacityRequestPolicy | None = None


class DeviceCounter(KubeStruct, frozen=True):
    """Amount of a counter of a counter set."""

    value: str


class CounterSet(KubeStruct, frozen=True):
    """Counters that devices of one card share."""

    name: str
    counters: dict[str, DeviceCounter] = msgspec.field(default_factory=dict)


class CounterConsumption(KubeStruct, frozen=True):
    """Amounts that a device consumes of a counter set while it is allocated.

    They are consumed once, also if the device has several allocations.
    """

    counter_set: str
    counters: dict[str, DeviceCounter] = msgspec.field(default_factory=dict)


class DeviceTaint(KubeStruct, frozen=True):
    """Taint of a device, which keeps claims without a toleration away; ``effect`` is None, NoSchedule or NoExecute."""

    key: str
    value: str = ""
    effect: str = ""
    time_added: str | None = None


class SliceDevice(KubeStruct, frozen=True):
    """Device of a resource slice. Names of attributes and capacities without a domain belong to the driver."""

    name: str
    attributes: dict[str, DeviceAttribute] = msgspec.field(default_factory=dict)
    capacity: dict[str, DeviceCapacity] = msgspec.field(default_factory=dict)
    consumes_counters: tuple[CounterConsumption, ...] = ()
    taints: tuple[DeviceTaint, ...] = ()
    allow_multiple_allocations: bool | None = None


class ResourcePool(KubeStruct, frozen=True):
    """Pool to which a resource slice belongs.

    Slices of older generations of a pool are obsolete. ``resource_slice_count`` is the number of slices of the present
    generation.
    """

    name: str
    generation: int = msgspec.field(default=0)
    resource_slice_count: int = 0


class ResourceSliceSpec(KubeStruct, frozen=True):
    """Devices or counter sets of a resource pool; older servers put both into one slice."""

    driver: str
    pool: ResourcePool
    node_name: str | None = None
    devices: tuple[SliceDevice, ...] = ()
    shared_counters: tuple[CounterSet, ...] = ()


class ResourceSlice(KubeStruct, frozen=True):
    """Devices that a driver offers on a node; cluster scoped."""

    metadata: ObjectMeta
    spec: ResourceSliceSpec


class CelSelector(KubeStruct, frozen=True):
    """CEL expression that the scheduler evaluates."""

    expression: str = ""


class DeviceSelector(KubeStruct, frozen=True):
    """Selector of acceptable devices."""

    cel: CelSelector | None = None


class DeviceToleration(KubeStruct, frozen=True):
    """Taint that a request tolerates; an empty ``operator`` means ``Equal``."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class CapacityRequirements(KubeStruct, frozen=True):
    """Amounts requested of each device, by the name of the capacity."""

    requests: dict[str, str] = msgspec.field(default_factory=dict)


class ExactDeviceRequest(KubeStruct, frozen=True):
    """Request for devices of one class; ``allocation_mode`` is ExactCount or All."""

    device_class_name: str = ""
    selectors: tuple[DeviceSelector, ...] = ()
    allocation_mode: str = ""
    count: int = 0
    admin_access: bool | None = None
    tolerations: tuple[DeviceToleration, ...] = ()
    capacity: CapacityRequirements | None = None


class DeviceSubRequest(KubeStruct, frozen=True):
    """One of several alternatives of a request."""

    name: str
    device_class_name: str = ""
    selectors: tuple[DeviceSelector, ...] = ()
    allocation_mode: str = ""
    count: int = 0
    tolerations: tuple[DeviceToleration, ...] = ()
    capacity: CapacityRequirements | None = None


class DeviceRequest(KubeStruct, frozen=True):
    """Request for devices. Either ``exactly`` or ``first_available`` is set.

    Args:
        name: name of the request in its claim.
        exactly: the requested devices.
        first_available: alternatives in order of preference; the first one that is available is allocated.
    """

    name: str
    exactly: ExactDeviceRequest | None = None
    first_available: tuple[DeviceSubRequest, ...] = ()


class DeviceConstraint(KubeStruct, frozen=True):
    """Constraint on the devices of some requests, or of all requests if ``requests`` is empty.

    The devices must all have the same value of ``match_attribute``, or each a different value of
    ``distinct_attribute``.
    """

    requests: tuple[str, ...] = ()
    match_attribute: str | None = None
    distinct_attribute: str | None = None


class OpaqueConfig(KubeStruct, frozen=True):
    """Configuration for one driver, which Kubernetes does not read."""

    driver: str
    parameters: Any = None


class DeviceConfig(KubeStruct, frozen=True):
    """Configuration for the drivers that serve ``requests``, or all requests of the claim if ``requests`` is empty."""

    requests: tuple[str, ...] = ()
    opaque: OpaqueConfig | None = None


class DeviceClaim(KubeStruct, frozen=True):
    """Requests, constraints and configuration of a claim."""

    requests: tuple[DeviceRequest, ...] = ()
    constraints: tuple[DeviceConstraint, ...] = ()
    config: tuple[DeviceConfig, ...] = ()


class ResourceClaimSpec(KubeStruct, frozen=True):
    """Immutable ``spec`` of a claim."""

    devices: DeviceClaim = DeviceClaim()


class AllocatedDevice(KubeStruct, frozen=True):
    """Device, or share of one, allocated to a request. ``request`` is ``NAME`` or ``NAME/SUBREQUEST``."""

    request: str
    driver: str
    pool: str
    device: str
    admin_access: bool | None = None
    tolerations: tuple[DeviceToleration, ...] = ()
    share_id: str | None = msgspec.field(name="shareID", default=None)
    consumed_capacity: dict[str, str] = msgspec.field(default_factory=dict)


class AllocatedConfig(KubeStruct, frozen=True):
    """Configuration for a driver, taken from the device class (``source`` FromClass) or the claim (FromClaim)."""

    source: str = ""
    requests: tuple[str, ...] = ()
    opaque: OpaqueConfig | None = None


class AllocatedDevices(KubeStruct, frozen=True):
    """All devices allocated to a claim, of every driver."""

    results: tuple[AllocatedDevice, ...] = ()
    config: tuple[AllocatedConfig, ...] = ()


class ClaimAllocation(KubeStruct, frozen=True):
    """Allocation of a claim, with the nodes on which it can be used."""

    devices: AllocatedDevices = AllocatedDevices()
    node_selector: NodeSelector | None = None
    allocation_timestamp: str | None = None


class ClaimConsumer(KubeStruct, frozen=True):
    """Object that may use a claim; ``resource`` is ``pods`` for a pod."""

    api_group: str = ""
    resource: str = ""
    name: str = ""
    uid: str = ""


class AllocatedDeviceStatus(KubeStruct, frozen=True):
    """Status of an allocated device, reported by its driver."""

    driver: str
    pool: str
    device: str
    share_id: str | None = msgspec.field(name="shareID", default=None)
    conditions: tuple[Condition, ...] = ()
    data: Any = None


class ResourceClaimStatus(KubeStruct, frozen=True):
    """Status of a claim; ``allocation`` is None if nothing is allocated. Each field has its own writer."""

    allocation: ClaimAllocation | None = None
    reserved_for: tuple[ClaimConsumer, ...] = ()
    devices: tuple[AllocatedDeviceStatus, ...] = ()


class ResourceClaim(KubeStruct, frozen=True):
    """Claim of devices that pods can share; namespaced."""

    metadata: ObjectMeta
    spec: ResourceClaimSpec = ResourceClaimSpec()
    status: ResourceClaimStatus = ResourceClaimStatus()


class ResourceClaimTemplateSpec(KubeStruct, frozen=True):
    """Metadata and spec of the claims that are created from a template."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ResourceClaimSpec = ResourceClaimSpec()


class ResourceClaimTemplate(KubeStruct, frozen=True):
    """Template from which each pod gets its own claim; namespaced."""

    metadata: ObjectMeta
    spec: ResourceClaimTemplateSpec = ResourceClaimTemplateSpec()


class DeviceClassSpec(KubeStruct, frozen=True):
    """Selectors and configuration of a class; ``extended_resource_name`` lets containers request it as a resource."""

    selectors: tuple[DeviceSelector, ...] = ()
    config: tuple[DeviceConfig, ...] = ()
    extended_resource_name: str | None = None


class DeviceClass(KubeStruct, frozen=True):
    """Class of devices that claims may request, defined by an administrator; cluster scoped."""

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
