"""Sharing mode ``timeslice``: the driver time-slices the device between several allocations; memory caps are optional.

Theory of operation. A device accepts as many slices as its operator configures (``Device.replicas``). Compute is not divided:
an allocation gets all of it while the other allocations on the device are idle. The operator sets the length
of the time slices, or leaves it to the driver. A request without an amount of memory has no cap and no guaranteed
memory. An amount of memory is a cap enforced in the tenant's process by the shim, as in mode ``vgpu``. The
sum of all caps on a device, plus ``SLICE_RESERVE_MIB`` for each, stays within its memory. Allocations without a cap may
still use that memory.
"""

from __future__ import annotations

from collections.abc import Sequence

from calabash.model.device import REPLICAS_MAX, Device
from calabash.model.errors import Reason
from calabash.model.request import ComputePolicy, GpuRequest, Isolation, ModeName, Slice
from calabash.sharing.amounts import amounts_misfit, requested_memory_mib
from calabash.sharing.protocol import Charge, DeviceOccupancy, Edits, HeldSlice, Misfit, shim_environment

SLICE_RESERVE_MIB = 32


def replicas_of(device: Device) -> int:
    """Return the number of allocations that may time-slice the device."""
    return max(1, min(device.replicas, REPLICAS_MAX))


def charged_memory_mib(part: Slice) -> int:
    """Return the memory that a slice is charged: its cap and the reserve, or 0 without a cap."""
    return part.memory_mib + SLICE_RESERVE_MIB if part.memory_mib else 0


class TimeSlice:
    """Mode ``timeslice``: a whole device that the driver time-slices between several allocations."""

    name = ModeName("timeslice")
    isolation = Isolation.COOPERATIVE

    def rank(self, request: GpuRequest) -> int | None:
        del request
        return None  # only if requested by name, because the mode guarantees nothing

    def fits(self, device: Device, held: Sequence[HeldSlice], request: GpuRequest) -> Slice | Misfit:
        if request.core_percent != 100:
            message = f"mode timeslice does not divide compute, asked {request.core_percent}%"
            return Misfit(reason=Reason.MODE_CONFLICT, message=message)
        if len(held) >= replicas_of(device):
            message = f"{len(held)} of {replicas_of(device)} replicas are used"
            return Misfit(reason=Reason.NO_CAPACITY, message=message)
        if request.memory_mib is None and request.memory_milli is None:
            return Slice(device=device.uuid, memory_mib=0, core_percent=0)
        wanted_mib = requested_memory_mib(device, request, reserve_mib=SLICE_RESERVE_MIB)
        misfit = amounts_misfit(
            device,
            self.occupancy(device, held),
            memory_mib=wanted_mib,
            core_percent=0,
            reserve_mib=SLICE_RESERVE_MIB,
            slices_max=replicas_of(device),
        )
        return misfit or Slice(device=device.uuid, memory_mib=wanted_mib, core_percent=0)

    def charge(self, device: Device, part: Slice, policy: ComputePolicy) -> Charge:
        del policy
        core_milli = 1000 // replicas_of(device)
        if core_milli == 1000:
            return Charge(core_milli=core_milli)  # the only slice: charge the whole device
        return Charge(core_milli=core_milli, memory_mib=charged_memory_mib(part), slices_max=replicas_of(device))

    def occupancy(self, device: Device, held: Sequence[HeldSlice]) -> DeviceOccupancy:
        taken_mib = sum(charged_memory_mib(h.slice) for h in held)
        return DeviceOccupancy(
            device=device.uuid,
            mode=self.name,
            slices=len(held),
            memory_mib=sum(h.slice.memory_mib for h in held),
            memory_free_mib=max(0, device.memory_mib - taken_mib - SLICE_RESERVE_MIB),
            core_percent=0,
            core_free_percent=100,
            slots_free=max(0, replicas_of(device) - len(held)),
        )

    def container_edits(self, slices: Sequence[Slice], *, library: str, slot: str) -> Edits:
        return Edits(environment=shim_environment(slices, library=library, slot=slot))


MODE = TimeSlice()
