"""The one request that every front end is translated to, and the placement that answers it."""

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

SPILL_MODE = ModeName("vgpu")  # the one that can page
MIG_MODE = ModeName("mig")  # the one that a profile implies
MPS_MODE = ModeName("mps")
CUT_MODES = frozenset({MIG_MODE, MPS_MODE})  # those that serve a card as MIG has cut it
STANDING_MODES = frozenset({ModeName("brokered"), ModeName("passthrough")})  # that need no program of this machine
VF_MODE = ModeName("passthrough")  # likewise for a virtual function
DEFAULT_TENANT = "default"
KEEP_S_MAX = 30 * 86_400.0
DEFAULT_QUEUE = "default"
PORTS_MAX = 8
FAULT_SIGNALS = ("SIGTERM", "SIGUSR1")


class ComputePolicy(StrEnum):
    """What a compute share means: FIXED never more, BURST at least it plus idle time, BEST_EFFORT what is left."""

    FIXED = "fixed"
    BURST = "burst"
    BEST_EFFORT = "best-effort"


class Isolation(IntEnum):
    """How strongly tenants are kept apart; a sharing mode offers one level and serves requests up to it."""

    COOPERATIVE = 0
    BROKERED = 1
    HARDWARE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Selector:
    """Which devices are acceptable; empty fields accept all. Models match as a part and without regard to case.

    ``memory_mib_min`` and ``memory_mib_max`` are compared with the nominal size of a device, ``reported_mib_min`` with what its
    driver reports. What is excluded is not acceptable, whatever else is said of it.
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
    """What one container or program asks of the pool.

    Args:
        count: devices wanted; each carries the same amount.
        memory_mib: device memory per device; None means the whole device when exclusive, else no cap asked.
        spill_mib: the part of ``memory_mib`` that need not lie on the device; it is paged over the link to the host.
        memory_milli: the same in thousandths of the device, 1..1000, for those who do not know its size; None when not
            said. At most one of the two.
        core_percent: compute share per device, 1..100.
        mode: name of a sharing mode; "" lets the amounts decide (whole card -> exclusive, else vgpu).
        mig: name of a MIG profile (``1g.10gb``), or of a part of one (``1c.3g.40gb``), instead of amounts, which implies the
            mode; "" lets the amounts decide.
        vf: name of a part of a card for a virtual machine; implies mode passthrough.
        standing: it is kept until it is given back, whether or not a program of it runs: for virtual machines that others
            run. Only modes whose tenants are not programs of this host take such requests.
        keep_s: how long one that stands is kept without a word from its owner; 0: until it is given back.
        isolation: least acceptable level.
        priority: larger goes first; 0 is normal.
        gang: name of the gang it belongs to; with ``gang_size`` members needed before any starts.
        on_fault: name of the signal that its programs get when a device of theirs fails; "" for none.
        run_time_s: how long it expects to run; 0 means unknown. Lets it pass a reservation that it will not delay.
        ports: of tenant networks, ``VPC/SUBNET/PORT``: its program has these and no other network. They are granted and given
            back with it.
        cpu_milli, host_memory_mib: for schedulers that place on nodes; 0 where the pool does not manage them.
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
                f"memory is asked twice: {self.memory_mib} MiB and {self.memory_milli} thousandths of a device",
                hint="say one of them",
            )
        self._require_one_size()
        self._check_spill()
        if self.on_fault not in {"", *FAULT_SIGNALS}:
            raise CalabashError(f"signal {self.on_fault[:64]!r} is not one", hint=f"one of: {', '.join(FAULT_SIGNALS)}")
        if not 0 <= self.run_time_s < float("inf"):
            raise CalabashError(f"run time {self.run_time_s} is out of range", hint="seconds, 0 when unknown")
        if not 0 <= self.keep_s <= KEEP_S_MAX or (self.keep_s and not self.standing):
            raise CalabashError(
                f"keeping for {self.keep_s} s is out of range", hint="only what stands; at most 30 days"
            )
        if not 1 <= self.gang_size <= 100_000:
            raise CalabashError(f"gang size {self.gang_size} is out of range", hint="1 to 100000 members")
        self._check_ports()

    def _check_ports(self) -> None:
        for port in self.ports:
            check_path(port, 3, "port")
        if len(self.ports) > PORTS_MAX or len(set(self.ports)) != len(self.ports):
            raise CalabashError(f"{len(self.ports)} ports are asked for", hint=f"at most {PORTS_MAX}, each once")
        if self.ports and self.standing:
            raise CalabashError(
                f"port {self.ports[0]} is asked for something without a program",
                reason=Reason.UNSUPPORTED,
                hint="leave `standing` out, or the ports",
            )

    def _require_one_size(self) -> None:
        """Amounts, a MIG profile, or a virtual function, and the mode that belongs to it."""
        if self.mig and not is_profile_name(self.mig):
            raise CalabashError(f"MIG profile {self.mig[:64]!r} is not one", hint="for example 1g.10gb or 1g.10gb+me")
        if self.mig and (self.memory_mib is not None or self.memory_milli is not None or self.core_percent != 100):
            raise CalabashError(
                f"MIG profile {self.mig} says already how much of a device",
                hint="leave memory and cores out, or the profile",
            )
        if self.mig and self.mode not in ("", MIG_MODE):
            raise CalabashError(
                f"MIG profile {self.mig} is asked in mode {self.mode}", hint="leave the mode out with a profile"
            )
        if self.mig:
            object.__setattr__(self, "mode", MIG_MODE)
        if self.vf and (self.mig or self.memory_mib is not None or self.memory_milli is not None):
            raise CalabashError(
                f"virtual function {self.vf[:64]} says already how much of a device",
                hint="leave memory and the MIG profile out, or the virtual function",
            )
        if self.vf and self.mode not in ("", VF_MODE):
            raise CalabashError(
                f"virtual function {self.vf[:64]} is asked in mode {self.mode}", hint="leave the mode out with it"
            )
        if self.vf:
            object.__setattr__(self, "mode", VF_MODE)

    def _check_spill(self) -> None:
        """Spilling implies the one mode that can."""
        if not self.spill_mib:
            return
        if self.memory_mib is None or not 0 < self.spill_mib < self.memory_mib:
            raise CalabashError(
                f"spill {self.spill_mib} MiB of {self.memory_mib or 0} MiB of memory is out of range",
                hint="it is the part of --memory that need not lie on the card: more than nothing, less than all",
            )
        if self.mode not in ("", SPILL_MODE):
            raise CalabashError(
                f"spill is asked in mode {self.mode}, and only {SPILL_MODE} pages memory",
                reason=Reason.MODE_CONFLICT,
                hint="leave the mode out",
            )
        object.__setattr__(self, "mode", SPILL_MODE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """What one container has of one device. ``memory_mib`` 0 means not capped.

    ``spill_mib`` of it need not lie on the device; the rest is promised there.
    ``profile`` and ``start`` are a MIG instance and its first memory slice; "" and -1 where there is none. ``part`` is the
    first compute slice of a part of one, whose ``memory_mib`` is its fair part of a memory that it shares with the others
    in there; -1 for all of it. ``vf`` is the profile of a virtual function; "" where there is none.
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
        """Where its MIG instance is."""
        return MigPlace(self.start, self.part)

    @property
    def resident_mib(self) -> int:
        """What is promised on the device itself."""
        return self.memory_mib - self.spill_mib


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where a request goes: the node, the sharing mode, one slice per device."""

    node: NodeName
    mode: ModeName
    slices: tuple[Slice, ...]
