"""Interface (``typing.Protocol``) that every sharing mode implements, and the types of its arguments and results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from calabash.model.device import Device, DeviceUuid
from calabash.model.errors import Reason
from calabash.model.request import ComputePolicy, GpuRequest, Isolation, ModeName, Slice


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldSlice:
    """Existing slice of a device, with the compute policy of its request.

    The policy decides if the compute share of the slice is guaranteed.
    """

    slice: Slice
    policy: ComputePolicy = ComputePolicy.FIXED


@dataclass(frozen=True, slots=True, kw_only=True)
class Misfit:
    """Reason for which a request does not fit on a device: the code, and one line with the numbers."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceOccupancy:
    """Division of a device: granted amounts and free amounts.

    Args:
        slices: number of slices.
        memory_mib, memory_free_mib: memory that is granted to slices, and memory that can still be granted.
        core_percent, core_free_percent: sum of the guaranteed compute shares, and compute that can still be guaranteed.
        slots_free: number of further slices that the mode admits, whatever their amounts.
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
    """Mount of a host file or directory: ``path`` on the host, ``inside`` in the container."""

    path: str
    inside: str
    read_only: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Edits:
    """Changes of a program's or container's environment that it needs to use its slices.

    Args:
        environment: environment variables; of two variables with the same name the later one is used.
        mounts: for containers: files of the host to mount.
        device_nodes: for containers: device nodes of the host, in addition to those of the devices.
        worker_socket: socket of the worker that uses the slices on behalf of the program; "" if the program uses them itself.
    """

    environment: tuple[tuple[str, str], ...] = ()
    mounts: tuple[Mount, ...] = ()
    device_nodes: tuple[str, ...] = ()
    worker_socket: str = ""

    def joined(self, more: Edits) -> Edits:
        """Return these edits together with ``more``.

        If both set the same variable, or the socket, the value of ``more`` is used.
        """
        return Edits(
            environment=tuple((dict(self.environment) | dict(more.environment)).items()),
            mounts=(*self.mounts, *more.mounts),
            device_nodes=tuple(dict.fromkeys((*self.device_nodes, *more.device_nodes))),
            worker_socket=more.worker_socket or self.worker_socket,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """Amounts that the scheduler subtracts from a device for a slice.

    Args:
        core_milli: thousandths of the compute. 1000 with ``memory_mib`` 0 is the whole device, including its memory.
        memory_mib: device memory.
        slices_max: most slices of this mode on the device, or on one MPS service of it; 0: no limit besides the amounts.
    """

    core_milli: int
    memory_mib: int = 0
    slices_max: int = 0


class SharingMode(Protocol):
    """Interface of a sharing mode: the isolation that it offers, and the slices that fit on a device.

    Implementations are stateless and pure.
    """

    @property
    def name(self) -> ModeName:
        """Name of the mode in requests."""
        ...

    @property
    def isolation(self) -> Isolation:
        """Isolation level that the mode offers."""
        ...

    def rank(self, request: GpuRequest) -> int | None:
        """Return the rank of the mode for a request that names no mode.

        The mode with the smallest rank is chosen. A mode with the rank None is used only for requests that name it.
        """
        ...

    def fits(self, device: Device, held: Sequence[HeldSlice], request: GpuRequest) -> Slice | Misfit:
        """Return the slice that the request gets of this device, or the reason for which the request does not fit.

        Args:
            held: slices that the device has already.
        """
        ...

    def charge(self, device: Device, part: Slice, policy: ComputePolicy) -> Charge:
        """Return the amounts that the scheduler subtracts from the device for a slice.

        The amounts must not be too small: whenever the scheduler counts them as free on a device, ``fits`` must accept
        the request.

        Args:
            part: the slice.
            policy: compute policy of its request.
        """
        ...

    def occupancy(self, device: Device, held: Sequence[HeldSlice]) -> DeviceOccupancy:
        """Return the occupancy of the device with the slices ``held``."""
        ...

    def container_edits(self, slices: Sequence[Slice], *, library: str, slot: str) -> Edits:
        """Return the edits that the program needs to use its slices.

        Args:
            library: path of the shim library.
            slot: path of the slot directory.
        """
        ...


def device_mode(mode: SharingMode) -> ModeName:
    """Return the mode that a device has while it has slices of mode ``mode``.

    This is usually ``mode`` itself. A mode may name another mode in its attribute ``beside``. Slices of both modes can
    then share a device, and the device has the other mode. Both modes must charge slices in the same way.
    """
    beside: ModeName | None = getattr(mode, "beside", None)
    return beside or mode.name


def shim_environment(slices: Sequence[Slice], *, library: str, slot: str) -> tuple[tuple[str, str], ...]:
    """Return the variables that load the shim into the program, give it its slot, and restrict the visible devices."""
    return (("LD_PRELOAD", library), ("CALABASH_SLOT", slot), *visible_devices(slices))


def visible_devices(slices: Sequence[Slice]) -> tuple[tuple[str, str], ...]:
    """Return the variables by which CUDA and the container runtime select the devices of the slices."""
    return visible_device(",".join(s.device for s in slices))


def visible_device(uuids: str) -> tuple[tuple[str, str], ...]:
    """Return the variables by which CUDA and the container runtime select devices or MIG devices.

    Args:
        uuids: UUIDs of the devices, separated by commas.
    """
    return (("CUDA_VISIBLE_DEVICES", uuids), ("NVIDIA_VISIBLE_DEVICES", uuids))
