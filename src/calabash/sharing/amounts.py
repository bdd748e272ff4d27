"""Memory and compute amounts of modes that grant MiB and percent: the requested memory, and the check of free amounts."""

from __future__ import annotations

from calabash.model.device import Device
from calabash.model.errors import Reason
from calabash.model.request import GpuRequest
from calabash.model.units import format_mib
from calabash.sharing.protocol import DeviceOccupancy, Misfit


def requested_memory_mib(device: Device, request: GpuRequest, *, reserve_mib: int) -> int:
    """Return the requested memory on this device in MiB.

    A request without an amount of memory gets the same fraction of the memory as of the compute.

    Args:
        reserve_mib: memory that the mode reserves for each slice. If a fraction of the memory is requested, the reserve
            is part of the fraction, and is subtracted from the result.
    """
    if request.memory_mib is not None:
        return request.memory_mib
    milli = request.memory_milli or 10 * request.core_percent
    return max(1, device.memory_mib * milli // 1000 - reserve_mib)


def amounts_misfit(
    device: Device,
    occupancy: DeviceOccupancy,
    *,
    memory_mib: int,
    core_percent: int,
    reserve_mib: int,
    slices_max: int,
) -> Misfit | None:
    """Return the first reason for which the amounts cannot be granted on the device, or None if they can.

    Args:
        occupancy: the current occupancy of the device.
        memory_mib, core_percent: requested amounts.
        reserve_mib: memory that the mode reserves for each slice.
        slices_max: most slices of the mode on the device; used in the message only.
    """
    usable_mib = device.memory_mib - reserve_mib
    if memory_mib > usable_mib:
        return Misfit(
            reason=Reason.TOO_LARGE,
            message=f"{device.model} can give one slice {format_mib(usable_mib)}, asked {format_mib(memory_mib)}",
        )
    if occupancy.slots_free == 0:
        return Misfit(reason=Reason.NO_CAPACITY, message=f"{occupancy.slices} of {slices_max} slices are used")
    if memory_mib > occupancy.memory_free_mib:
        return Misfit(
            reason=Reason.NO_MEMORY,
            message=f"{format_mib(occupancy.memory_free_mib)} of {format_mib(device.memory_mib)} is free,"
            f" asked {format_mib(memory_mib)}",
        )
    if core_percent > occupancy.core_free_percent:
        return Misfit(
            reason=Reason.NO_CORES,
            message=f"{occupancy.core_free_percent}% of compute is free, asked {core_percent}%",
        )
    return None
