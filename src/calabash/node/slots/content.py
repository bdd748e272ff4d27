"""What a slot's pages say at first: the agent's words in ``limits``, an empty ``usage``."""

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

_NEXT_TO_NOTHING = 512  # a limit of 0 would be none

POLICY_CODE = {
    None: PagePolicy.NONE,
    ComputePolicy.FIXED: PagePolicy.FIXED,
    ComputePolicy.BURST: PagePolicy.BURST,
    ComputePolicy.BEST_EFFORT: PagePolicy.BEST_EFFORT,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotDevice:
    """What a container may have of one device. ``memory_limit_bytes`` 0: no cap; ``policy`` None: no compute limit, and with
    ``metered`` the library measures what is used nevertheless.

    ``spill_bytes`` is the part of the cap that need not lie on the card.
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
    """One slot.

    Args:
        tenant_uid: the only user beside root who may read the slot and write ``usage``; None: every user who reaches
            its directory, as in a container that it is mounted in.
        leaseless: who belongs to the allocation is the kernel's matter, so there is no lease file.
    """

    allocation: AllocationId
    devices: tuple[SlotDevice, ...]
    tenant_uid: int | None = None
    leaseless: bool = False

    def __post_init__(self) -> None:
        if not 1 <= len(self.devices) <= DEVICES_MAX:
            raise CalabashError(
                f"{len(self.devices)} devices in one allocation", hint=f"1 to {DEVICES_MAX} are possible"
            )


def limits_bytes(spec: SlotSpec) -> bytes:
    """The first content of ``limits``."""
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
    """The gate until the arbiter has seen the slot: hold to the share, whoever else is there."""
    return Gate.OPEN if device.policy is None or device.core_percent >= 100 else Gate.RATE


def usage_bytes(spec: SlotSpec) -> bytes:
    """The first content of ``usage``."""
    return bytes(UsageStruct(magic=USAGE_MAGIC, version=_version(spec), device_count=len(spec.devices)))


def _version(spec: SlotSpec) -> int:
    """The least that says all of it: a library that does not know of spilling refuses what spills and nothing else."""
    return PAGE_VERSION if any(device.spill_bytes for device in spec.devices) else PAGE_PLAIN


def _write_spill(entry: LimitsDeviceStruct, device: SlotDevice) -> None:
    """Of the part that is promised on the card, as much as may spill is left for pages to come to; see spill.c."""
    resident = max(0, device.memory_limit_bytes - device.spill_bytes)
    at_once = max(_NEXT_TO_NOTHING, resident - device.spill_bytes)
    entry.memory_limit_bytes = at_once
    entry.spill_limit_bytes = device.memory_limit_bytes - at_once
    entry.resident_limit_bytes = resident


def _encoded(text: str, size: int) -> bytes:
    data = text.encode()
    if not 0 < len(data) < size:
        raise CalabashError(f"identifier {text!r} is {len(data)} bytes long", hint=f"1 to {size - 1} bytes fit")
    return data
