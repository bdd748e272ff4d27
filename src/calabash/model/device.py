"""Devices of a node: description, health, and readings from the driver."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NewType

from calabash.model.mig import MigGeometry, MigInstance
from calabash.model.nominal import nominal_memory_mib
from calabash.model.units import MIB

DeviceUuid = NewType("DeviceUuid", str)
NodeName = NewType("NodeName", str)


class Health(StrEnum):
    """Health state of a device. Only a HEALTHY device accepts new allocations."""

    HEALTHY = "healthy"
    SUSPECT = "suspect"
    DRAINING = "draining"
    RECOVERING = "recovering"
    LOST = "lost"


OUT_OF_SERVICE = frozenset({Health.DRAINING, Health.RECOVERING, Health.LOST})
"""States of devices that are out of service. A SUSPECT device may still answer the next query."""


class ComputeMode(StrEnum):
    """Compute mode of the driver: the number of processes that may have CUDA contexts on a device."""

    DEFAULT = "default"
    EXCLUSIVE_PROCESS = "exclusive_process"
    PROHIBITED = "prohibited"


REPLICAS = 8
REPLICAS_MAX = 32


class Interval(StrEnum):
    """Length of the time slices of programs that share a device: one of the lengths that the driver offers by name."""

    DEFAULT = "default"
    SHORT = "short"
    MEDIUM = "medium"
    LONG = "long"


@dataclass(frozen=True, slots=True, kw_only=True)
class VfProfile:
    """Profile of a virtual function for virtual machines; ``count`` is the number of them that the card can have."""

    name: str
    memory_mib: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One physical GPU as its driver describes it.

    Args:
        index: number of the device on its node.
        memory_mib: memory that the driver reports.
        numa_node: NUMA node of the device; -1 if unknown.
        nvlink_peers: devices connected directly by NVLink.
        reset_peers: devices that are reset together with it, because no NVLink switch is between them.
        mig_enabled: MIG mode is on now.
        mig: the MIG profiles that the driver offers, also while MIG mode is off; None if the device does not support MIG.
        mig_instances: GPU instances that exist now.
        pinned: the only sharing mode that the operator allows; "" if the mode follows demand.
        vf_profiles: profiles of its virtual functions.
        spill_mib: host memory of the node for all slices that spill device memory.
        replicas: most allocations that may share the device in mode timeslice.
        interval: length of the time slices in that mode; "" leaves it to the driver.
    """

    uuid: DeviceUuid
    index: int
    vendor: str
    model: str
    memory_mib: int
    multiprocessor_count: int = 0
    compute_capability: tuple[int, int] = (0, 0)
    pci_bus_id: str = ""
    numa_node: int = -1
    nvlink_peers: tuple[DeviceUuid, ...] = ()
    reset_peers: tuple[DeviceUuid, ...] = ()
    mig_enabled: bool = False
    mig: MigGeometry | None = None
    mig_instances: tuple[MigInstance, ...] = ()
    pinned: str = ""
    vf_profiles: tuple[VfProfile, ...] = ()
    spill_mib: int = 0
    replicas: int = REPLICAS
    interval: str = ""
    health: Health = Health.HEALTHY

    @property
    def nominal_memory_mib(self) -> int:
        """The memory size under which the model is sold."""
        return nominal_memory_mib(self.memory_mib, self.model)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProcess:
    """Process that holds memory of a device.

    Args:
        pid: process ID in the PID namespace of the reader.
        part: UUID of the MIG device that the process uses; "" for the whole device.
    """

    pid: int
    used_bytes: int
    part: str = ""

    @property
    def used_mib(self) -> int:
        """Used memory in MiB, rounded up."""
        return -(-self.used_bytes // MIB)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessUtilization:
    """Percentage of a device's time that one process used, measured at ``at_us`` by the clock of the driver."""

    pid: int
    percent: int
    at_us: int


class Slowdown(StrEnum):
    """Reasons for which the driver reduces the clocks of a device."""

    THERMAL = "thermal"
    POWER_BRAKE = "power_brake"
    POWER_CAP = "power_cap"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartTime:
    """Busy time of a MIG device that is the only one in its GPU instance.

    Args:
        uuid: UUID of the MIG device.
        busy_ns: busy time since its first reading, because the driver counts it only from then on.
    """

    uuid: DeviceUuid
    busy_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceReading:
    """State of one device at one time, read from its driver.

    Args:
        nvlinks_up: number of active NVLink links; -1 if the driver does not report it.
        parts: busy times of the MIG devices for which the driver reports them.
    """

    uuid: DeviceUuid
    memory_used_mib: int
    utilization_percent: int
    temperature_c: int
    power_w: float
    processes: tuple[DeviceProcess, ...] = ()
    ecc_uncorrected: int = 0
    row_remap_pending: bool = False
    row_remap_failed: bool = False
    retired_pages_pending: bool = False
    throttled: tuple[Slowdown, ...] = ()
    nvlinks_up: int = -1
    parts: tuple[PartTime, ...] = ()
