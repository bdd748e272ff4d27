"""What amounts a request takes of a device that is promised in MiB and percent, and whether they are left of it."""

from __future__ import annotations

from calabash.model.device import Device
from calabash.model.errors import Reason
from calabash.model.request import GpuRequest
from calabash.model.units import format_mib
from calabash.sharing.protocol import DeviceDivision, Misfit


def wanted_memory_mib(device: Device, request: GpuRequest, *, reserve_mib: int) -> int:
    """What it asks for; without an amount the same fraction of memory as of compute, ``reserve_mib`` within it."""
    if request.memory_mib is not None:
        return request.memory_mib
    milli = request.memory_milli or 10 * request.core_percent
    return max(1, device.memory_mib * milli // 1000 - reserve_mib)


def not_left(
    device: Device,
    division: DeviceDivision,
    *,
    memory_mib: int,
    core_percent: int,
    reserve_mib: int,
    slices_max: int,
) -> Misfit | None:
    """Why these amounts cannot be promised beside what is; None when they can."""
    usable_mib = device.memory_mib - reserve_mib
    if memory_mib > usable_mib:
        return Misfit(
            reason=Reason.TOO_LARGE,
            message=f"{device.model} can give one slice {format_mib(usable_mib)}, asked {format_mib(memory_mib)}",
        )
    if division.slots_free == 0:
        return Misfit(reason=Reason.NO_CAPACITY, message=f"{division.slices} of {slices_max} slices are on it")
    if memory_mib > division.memory_free_mib:
        return Misfit(
            reason=Reason.NO_MEMORY,
            message=f"{format_mib(division.memory_free_mib)} of {format_mib(device.memory_mib)} is free,"
            f" asked {format_mib(memory_mib)}",
        )
    if core_percent > division.core_free_percent:
        return Misfit(
            reason=Reason.NO_CORES,
            message=f"{division.core_free_percent}% of compute is free, asked {core_percent}%",
        )
    return None
