"""What a node has: devices, their health, and how they are wired."""

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
    """State of a device; only HEALTHY takes new work."""

    HEALTHY = "healthy"
    SUSPECT = "suspect"
    DRAINING = "draining"
    RECOVERING = "recovering"
    LOST = "lost"


ILL = frozenset({Health.DRAINING, Health.RECOVERING, Health.LOST})  # more than a question that was not answered


class ComputeMode(StrEnum):
    """Which processes may have contexts on a device."""

    DEFAULT = "default"
    EXCLUSIVE_PROCESS = "exclusive_process"
    PROHIBITED = "prohibited"


REPLICAS = 8
REPLICAS_MAX = 32


class Interval(StrEnum):
    """How long the turns are of programs that share a device, in the driver's own classes."""

    DEFAULT = "default"
    SHORT = "short"
    MEDIUM = "medium"
    LONG = "long"


@dataclass(frozen=True, slots=True, kw_only=True)
class VfProfile:
    """A part of a card for a virtual machine: its name, its memory, and how many of it the card makes."""

    name: str
    memory_mib: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A physical card, as its vendor's driver describes it.

    ``nvlink_peers`` are the UUIDs that it reaches directly, ``reset_peers`` those that
    are reset with it because no switch is between them; ``numa_node`` is -1 when unknown. ``mig`` is how MIG could cut
    it, as its driver says, whether or not it is cut now; None where it cannot. ``mig_instances`` are those that stand on it.
    ``spill_mib`` is how much host memory its node gives, to all slices together, for what does not fit on their cards.
    ``pinned`` is the one sharing mode that its operator leaves to it; "" follows demand. ``vf_profiles`` are the parts of it
    that virtual machines can have. ``replicas`` is how many tenants may use it in turns, ``interval`` how long their turns are
    to be; "" leaves that to the driver.
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
        """The size that its model is sold with, by which people ask for it."""
        return nominal_memory_mib(self.memory_mib, self.model)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProcess:
    """A process that holds memory of a device; ``pid`` is in the reader's namespace.

    ``part`` is the MIG device that it is on; "" for the whole card.
    """

    pid: int
    used_bytes: int
    part: str = ""

    @property
    def used_mib(self) -> int:
        """The same, rounded up."""
        return -(-self.used_bytes // MIB)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessUtilization:
    """Part of a device's time, in percent, that one process had until ``at_us``, by the driver's own clock."""

    pid: int
    percent: int
    at_us: int


class Slowdown(StrEnum):
    """Why a device runs slower than it could."""

    THERMAL = "thermal"
    POWER_BRAKE = "power_brake"
    POWER_CAP = "power_cap"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartTime:
    """A MIG device that is alone in its GPU instance: time in which that worked, since its driver is asked."""

    uuid: DeviceUuid
    busy_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceReading:
    """A moment's truth about one device, from its driver; ``nvlinks_up`` is -1 where links are not told of, and ``parts`` are
    those whose use is told."""

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
