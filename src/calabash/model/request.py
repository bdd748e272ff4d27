"""Requests for devices, into which every front end translates its input, and placements, the result of scheduling."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import NewType

from calabash.model.addresses import check_path
from calabash.model.device import DeviceUuid, NodeName
from calabash.model.errors import CalabashError, Reason
from calabash.model.mig import MigPlace, is_profile_name

AllocationId = NewType("AllocationId", str)
ModeName = NewType("ModeName", str)

SPILL_MODE = ModeName("vgpu")  # the only mode that pages device memory to the host
MIG_MODE = ModeName("mig")  # implied by a MIG profile
MPS_MODE = ModeName("mps")
CUT_MODES = frozenset({MIG_MODE, MPS_MODE})  # modes that can use MIG instances
STANDING_MODES = frozenset({ModeName("brokered"), ModeName("passthrough")})  # modes that need no local program
VF_MODE = ModeName("passthrough")  # implied by a virtual function
DEFAULT_TENANT = "default"
KEEP_S_MAX = 30 * 86_400.0
DEFAULT_QUEUE = "default"
PORTS_MAX = 8
FAULT_SIGNALS = ("SIGTERM", "SIGUSR1")


class ComputePolicy(StrEnum):
    """Meaning of a compute share. FIXED: a maximum. BURST: a minimum, plus idle time. BEST_EFFORT: idle time only."""

    FIXED = "fixed"
    BURST = "burst"
    BEST_EFFORT = "best-effort"


class Isolation(IntEnum):
    """Levels of isolation between tenants. A sharing mode offers one level and serves requests for that or a lower level."""

    COOPERATIVE = 0
    BROKERED = 1
    HARDWARE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Selector:
    """Filter of acceptable devices. Empty fields accept all devices; exclusions win over the other fields.

    Args:
        models, models_excluded: substrings of model names, without regard to case.
        memory_mib_min, memory_mib_max: bounds of the nominal memory size, under which the model is sold; 0 for no
            bound.
        reported_mib_min: least memory size that the driver must report, which is below the nominal size; 0 for no
            bound.
    """

    models: tuple[str, ...] = ()
    uuids: tuple[DeviceUuid, ...] = ()
    models_excluded: tuple[str, ...] = ()
    uuids_excluded: tuple[DeviceUuid, ...] = ()
    memory_mib_min: int = 0
    memory_mib_max: int = 0
    reported_mib_min: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRequest:
    """Request of one container or program for devices.

    Args:
        count: number of devices; the request has the same amount of each.
        memory_mib: memory per device; None if no amount is given: the whole memory in mode exclusive, otherwise no
            limit.
        spill_mib: how much of ``memory_mib`` may be paged to host memory.
        memory_milli: device memory per device in thousandths of its size, 1..1000; None if not given. A request has at most one
            of ``memory_mib`` and ``memory_milli``.
        core_percent: compute share per device, 1..100.
        mode: name of a sharing mode; "": decided by the amounts (exclusive for a whole device, otherwise vgpu).
        mig: name of a MIG profile of a GPU instance (``1g.10gb``) or of a compute instance (``1c.3g.40gb``) instead of amounts;
            implies mode mig; "" for none.
        vf: name of a profile of virtual functions; implies mode passthrough; "" for none.
        standing: the allocation is kept until it is given back, also while no program of it runs: for virtual machines that
            other software runs. Allowed in ``STANDING_MODES`` only.
        keep_s: seconds for which a standing allocation is kept without a renewal by its owner; 0: until it is given back.
        isolation: lowest acceptable level.
        priority: a larger priority is scheduled first; 0 is normal.
        gang: name of the gang; no member starts before ``gang_size`` members can start.
        on_fault: name of the signal that the programs get if a device of theirs fails; "" for none.
        run_time_s: expected run time; 0: unknown. A request with a run time may use reserved devices until they are needed.
        ports: ports of tenant networks, ``VPC/SUBNET/PORT``. The program has these and no other network interfaces. They are
            granted and given back together with the devices.
        cpu_milli, host_memory_mib: CPU and memory of the node, for schedulers that place requests on nodes; 0 where
            they are not managed.
    """

    count: int = 1
    memory_mib: int | None = None
    spill_mib: int = 0
    memory_milli: int | None = None
    core_percent: int = 100
    mode: ModeName = field(default=ModeName(""))
    mig: str = ""
    vf: str = ""
    standing: bool = False
    keep_s: float = 0.0
    isolation: Isolation = Isolation.COOPERATIVE
    policy: ComputePolicy = ComputePolicy.FIXED
    priority: int = 0
    tenant: str = DEFAULT_TENANT
    queue: str = DEFAULT_QUEUE
    gang: str = ""
    gang_size: int = 1
    selector: Selector = field(default_factory=Selector)
    run_time_s: float = 0.0
    on_fault: str = ""
    cpu_milli: int = 0
    host_memory_mib: int = 0
    ports: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= self.count <= 64:
            raise CalabashError(f"gpus {self.count} is out of range", hint="ask for 1 to 64 devices")
        if not 1 <= self.core_percent <= 100:
            raise CalabashError(f"cores {self.core_percent} is out of range", hint="1 to 100 percent of one device")
        if self.memory_mib is not None and self.memory_mib < 1:
            raise CalabashError(f"memory {self.memory_mib} MiB is out of range", hint="ask for at least 1MiB")
        if self.memory_milli is not None and not 1 <= self.memory_milli <= 1000:
            raise CalabashError(
                f"memory {self.memory_milli} thousandths of a device is out of range", hint="ask for 1 to 1000"
            )
        if self.memory_mib is not None and self.memory_milli is not None:
            raise CalabashError(
                f"memory is given twice: {self.memory_mib} MiB and {self.memory_milli} thousandths of a device",
                hint="give one of them",
            )
        self._require_one_size()
        self._check_spill()
        if self.on_fault not in {"", *FAULT_SIGNALS}:
            raise CalabashError(
                f"signal {self.on_fault[:64]!r} is not supported", hint=f"use one of: {', '.join(FAULT_SIGNALS)}"
            )
        if not 0 <= self.run_time_s < float("inf"):
            raise CalabashError(f"run time {self.run_time_s} is out of range", hint="seconds, 0 when unknown")
        if not 0 <= self.keep_s <= KEEP_S_MAX or (self.keep_s and not self.standing):
            raise CalabashError(
                f"keep time {self.keep_s} s is out of range", hint="at most 30 days, and for standing requests only"
            )
        if not 1 <= self.gang_size <= 100_000:
            raise CalabashError(f"gang size {self.gang_size} is out of range", hint="1 to 100000 members")
        self._check_ports()

    def _check_ports(self) -> None:
        for port in self.ports:
            check_path(port, 3, "port")
        if len(self.ports) > PORTS_MAX or len(set(self.ports)) != len(self.ports):
            raise CalabashError(
                f"{len(self.ports)} ports are requested, at most {PORTS_MAX} different ones are allowed",
                hint=f"name at most {PORTS_MAX} ports, each once",
            )
        if self.ports and self.standing:
            raise CalabashError(
                f"port {self.ports[0]} needs a program, and a standing request has none",
                reason=Reason.UNSUPPORTED,
                hint="leave `standing` out, or the ports",
            )

    def _require_one_size(self) -> None:
        """Check that the request has either amounts, or a MIG profile, or a virtual function, and set the implied mode."""
        if self.mig and not is_profile_name(self.mig):
            raise CalabashError(
                f"MIG profile {self.mig[:64]!r} is not a profile name", hint="for example 1g.10gb or 1g.10gb+me"
            )
        if self.mig and (self.memory_mib is not None or self.memory_milli is not None or self.core_percent != 100):
            raise CalabashError(
                f"MIG profile {self.mig} cannot be combined with memory or cores",
                hint="leave memory and cores out, or the profile",
            )
        if self.mig and self.mode not in ("", MIG_MODE):
            raise CalabashError(
                f"MIG profile {self.mig} needs mode {MIG_MODE}, and mode {self.mode} is given",
                hint="leave the mode out with a profile",
            )
        if self.mig:
            object.__setattr__(self, "mode", MIG_MODE)
        if self.vf and (self.mig or self.memory_mib is not None or self.memory_milli is not None):
            raise CalabashError(
                f"virtual function {self.vf[:64]} cannot be combined with memory or a MIG profile",
                hint="leave memory and the MIG profile out, or the virtual function",
            )
        if self.vf and self.mode not in ("", VF_MODE):
            raise CalabashError(
                f"virtual function {self.vf[:64]} needs mode {VF_MODE}, and mode {self.mode} is given",
                hint="leave the mode out with a virtual function",
            )
        if self.vf:
            object.__setattr__(self, "mode", VF_MODE)

    def _check_spill(self) -> None:
        """Check the spill amount and set the only mode that supports spilling."""
        if not self.spill_mib:
            return
        if self.memory_mib is None or not 0 < self.spill_mib < self.memory_mib:
            raise CalabashError(
                f"spill {self.spill_mib} MiB of {self.memory_mib or 0} MiB of memory is out of range",
                hint="spill is how much of --memory may be in host memory: more than 0, less than all of it",
            )
        if self.mode not in ("", SPILL_MODE):
            raise CalabashError(
                f"spill needs mode {SPILL_MODE}, and mode {self.mode} is given",
                reason=Reason.MODE_CONFLICT,
                hint="leave the mode out",
            )
        object.__setattr__(self, "mode", SPILL_MODE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """Slice: the amount of one device that one container or program has.

    Args:
        memory_mib: device memory; 0: not limited. For a compute instance: its proportional share of the memory of the GPU
            instance, which all its compute instances use together.
        spill_mib: how much of ``memory_mib`` may be in host memory.
        profile, start: profile and first memory slice of the MIG GPU instance; "" and -1 for none.
        part: first compute slice of the compute instance in its GPU instance; -1 for the whole GPU instance.
        vf: profile of the virtual function; "" for none.
    """

    device: DeviceUuid
    memory_mib: int
    core_percent: int
    profile: str = ""
    start: int = -1
    part: int = -1
    vf: str = ""
    spill_mib: int = 0

    @property
    def place(self) -> MigPlace:
        """Position of the MIG instance on the device."""
        return MigPlace(self.start, self.part)

    @property
    def resident_mib(self) -> int:
        """Memory that is guaranteed to be on the device."""
        return self.memory_mib - self.spill_mib


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Devices and amounts chosen for a request: the node, the sharing mode, and one slice per device."""

    node: NodeName
    mode: ModeName
    slices: tuple[Slice, ...]
