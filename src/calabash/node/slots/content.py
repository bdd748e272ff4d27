"""Initial contents of the pages of a slot."""

from __future__ import annotations

from dataclasses import dataclass

from calabash.model.device import DeviceUuid
from calabash.model.errors import CalabashError
from calabash.model.request import AllocationId, ComputePolicy
from calabash.node.slots.layout import (
    ALLOCATION_BYTES,
    DEVICES_MAX,
    LIMITS_LEASELESS,
    LIMITS_MAGIC,
    PAGE_PLAIN,
    PAGE_VERSION,
    USAGE_MAGIC,
    UUID_BYTES,
    Gate,
    LimitsDeviceStruct,
    LimitsStruct,
    PagePolicy,
    UsageStruct,
)

_NEXT_TO_NOTHING = 512  # a limit of 0 would mean no limit

POLICY_CODE = {
    None: PagePolicy.NONE,
    ComputePolicy.FIXED: PagePolicy.FIXED,
    ComputePolicy.BURST: PagePolicy.BURST,
    ComputePolicy.BEST_EFFORT: PagePolicy.BEST_EFFORT,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotDevice:
    """Limits of a slot for one device.

    Args:
        memory_limit_bytes: 0: no limit.
        spill_bytes: part of the memory limit that may be in host memory.
        core_percent: compute share of the device.
        policy: policy of the compute share; None: no limit of compute.
        metered: the shim library measures the use of the device even without a policy.
    """

    uuid: DeviceUuid
    memory_limit_bytes: int = 0
    spill_bytes: int = 0
    core_percent: int = 100
    policy: ComputePolicy | None = None
    priority: int = 0
    metered: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotSpec:
    """Contents of one slot.

    Args:
        tenant_uid: the only user besides root who may read the slot and write ``usage``; None: every user who can reach
            the slot's directory, for example in a container in which it is mounted.
        leaseless: the slot has no lease file, because members are known by their control group.
    """

    allocation: AllocationId
    devices: tuple[SlotDevice, ...]
    tenant_uid: int | None = None
    leaseless: bool = False

    def __post_init__(self) -> None:
        if not 1 <= len(self.devices) <= DEVICES_MAX:
            raise CalabashError(
                f"an allocation has {len(self.devices)} devices", hint=f"an allocation has 1 to {DEVICES_MAX} devices"
            )


def limits_bytes(spec: SlotSpec) -> bytes:
    """Return the initial contents of the limits page."""
    limits = LimitsStruct(magic=LIMITS_MAGIC, version=_version(spec), device_count=len(spec.devices))
    limits.flags = LIMITS_LEASELESS if spec.leaseless else 0
    limits.allocation = _encoded(spec.allocation, ALLOCATION_BYTES)
    for entry, device in zip(limits.device, spec.devices, strict=False):
        entry.uuid = _encoded(device.uuid, UUID_BYTES)
        entry.memory_limit_bytes = device.memory_limit_bytes
        if device.spill_bytes:
            _write_spill(entry, device)
        entry.core_percent = device.core_percent
        entry.policy = PagePolicy.METERED if device.metered else POLICY_CODE[device.policy]
        entry.priority = device.priority
        entry.gate = initial_gate(device)
    return bytes(limits)


def initial_gate(device: SlotDevice) -> Gate:
    """Return the gate of a slice until the arbiter has read the slot: it limits the slice to its share."""
    return Gate.OPEN if device.policy is None or device.core_percent >= 100 else Gate.RATE


def usage_bytes(spec: SlotSpec) -> bytes:
    """Return the initial contents of the usage page."""
    return bytes(UsageStruct(magic=USAGE_MAGIC, version=_version(spec), device_count=len(spec.devices)))


def _version(spec: SlotSpec) -> int:
    """Return the version to write into the pages: the newer one if the slot may spill memory to the host.

    All other slots have the older version, so that a shim library without support for spilling accepts them.
    """
    return PAGE_VERSION if any(device.spill_bytes for device in spec.devices) else PAGE_PLAIN


def _write_spill(entry: LimitsDeviceStruct, device: SlotDevice) -> None:
    """Set the limits of a device on which the slice may spill memory to the host.

    As much of the slice's memory on the card as may spill is reserved for pages that return to the card. See spill.c.
    """
    resident = max(0, device.memory_limit_bytes - device.spill_bytes)
    at_once = max(_NEXT_TO_NOTHING, resident - device.spill_bytes)
    entry.memory_limit_bytes = at_once
    entry.spill_limit_bytes = device.memory_limit_bytes - at_once
    entry.resident_limit_bytes = resident


def _encoded(text: str, size: int) -> bytes:
    data = text.encode()
    if not 0 < len(data) < size:
        raise CalabashError(f"identifier {text!r} is {len(data)} bytes long", hint=f"use 1 to {size - 1} bytes")
    return data
