"""The questions that every sharing mode answers, and the values they are answered with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from calabash.model.device import Device, DeviceUuid
from calabash.model.errors import Reason
from calabash.model.request import ComputePolicy, GpuRequest, Isolation, ModeName, Slice


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldSlice:
    """A slice that is already on the device, with the policy that decides whether its compute share is guaranteed."""

    slice: Slice
    policy: ComputePolicy = ComputePolicy.FIXED


@dataclass(frozen=True, slots=True, kw_only=True)
class Misfit:
    """Why a request does not fit on a device: a stable code, and one line with the numbers."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceDivision:
    """How a device is divided: what is promised away and what could still be promised.

    ``core_percent`` counts guaranteed shares only; ``slots_free`` is how many more slices the mode admits at all.
    """

    device: DeviceUuid
    mode: ModeName
    slices: int
    memory_mib: int
    memory_free_mib: int
    core_percent: int
    core_free_percent: int
    slots_free: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A file or directory of the host that a container sees at ``inside``; programs on the host use ``path``."""

    path: str
    inside: str
    read_only: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Edits:
    """What a program or container needs to use its slices.

    Args:
        environment: variables; of two with one name the later one counts.
        worker_socket: where a worker listens that uses the slices in the program's stead; "" where the program itself does.
        mounts: for containers, what of the host's files they need.
        device_nodes: for containers, paths of device nodes on the host beside those of their cards.
    """

    environment: tuple[tuple[str, str], ...] = ()
    mounts: tuple[Mount, ...] = ()
    device_nodes: tuple[str, ...] = ()
    worker_socket: str = ""

    def joined(self, more: Edits) -> Edits:
        """Both; where they say different things, ``more`` counts."""
        return Edits(
            environment=tuple((dict(self.environment) | dict(more.environment)).items()),
            mounts=(*self.mounts, *more.mounts),
            device_nodes=tuple(dict.fromkeys((*self.device_nodes, *more.device_nodes))),
            worker_socket=more.worker_socket or self.worker_socket,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """What a slice takes of a device in the scheduler: thousandths of compute, and MiB. 1000 and 0 is the whole device, memory
    included. ``slices_max`` is how many slices of this mode the device (or one MPS service of it) takes at all; 0: amounts
    alone limit them."""

    core_milli: int
    memory_mib: int = 0
    slices_max: int = 0


class SharingMode(Protocol):
    """One way of sharing a device. Implementations are stateless and pure."""

    @property
    def name(self) -> ModeName:
        """The word that people and requests use."""
        ...

    @property
    def isolation(self) -> Isolation:
        """How strongly this mode keeps tenants apart."""
        ...

    def rank(self, request: GpuRequest) -> int | None:
        """How naturally this mode answers a request that names none: the smallest wins, None is never chosen."""
        ...

    def fits(self, device: Device, held: Sequence[HeldSlice], request: GpuRequest) -> Slice | Misfit:
        """The slice that the request would get of this device beside ``held``, or why it gets none."""
        ...

    def charge(self, device: Device, part: Slice, policy: ComputePolicy) -> Charge:
        """What a slice takes of this device in the scheduler's books: what fits by charges also fits by ``fits``."""
        ...

    def division(self, device: Device, held: Sequence[HeldSlice]) -> DeviceDivision:
        """How the device is divided among ``held``."""
        ...

    def container_edits(self, slices: Sequence[Slice], *, library: str, slot: str) -> Edits:
        """What the program needs, given the path of the shim library and of its slot directory."""
        ...


def device_mode(mode: SharingMode) -> ModeName:
    """The mode that a device is in while this one has slices of it: its own, unless it says beside which other it serves
    (``beside``). Modes that say the same share devices, so they must charge alike."""
    beside: ModeName | None = getattr(mode, "beside", None)
    return beside or mode.name


def shim_environment(slices: Sequence[Slice], *, library: str, slot: str) -> tuple[tuple[str, str], ...]:
    """What makes the shim part of the program: it narrows the view of devices and keeps to the limits of the slot."""
    return (("LD_PRELOAD", library), ("CALABASH_SLOT", slot), *visible_devices(slices))


def visible_devices(slices: Sequence[Slice]) -> tuple[tuple[str, str], ...]:
    """The two variables by which CUDA and the container runtime learn which devices are meant."""
    return visible_device(",".join(s.device for s in slices))


def visible_device(uuids: str) -> tuple[tuple[str, str], ...]:
    """The same for devices, or parts of them, by name."""
    return (("CUDA_VISIBLE_DEVICES", uuids), ("NVIDIA_VISIBLE_DEVICES", uuids))
