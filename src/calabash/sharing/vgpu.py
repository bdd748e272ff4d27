"""Sharing mode ``vgpu``: software slices of any memory size and compute percentage, enforced by the shim.

Theory of operation. The shim runs in the tenant's process. Every slice is granted ``memory_mib`` and ``core_percent``. A
device is never overcommitted:

* memory: the sum of all slices plus ``SLICE_RESERVE_MIB`` for each stays within the device memory. Memory that NVML attributes
  to the tenant's processes (contexts, modules) counts against the tenant's cap. The reserve covers memory that NVML attributes
  to no process, such as page tables and channels; it grows with the number of slices and not with their size. If the node
  allows it, a slice can spill some of its memory to the host (``spill_mib``). Only the rest counts against the device; the node
  limits the spilled memory.
* compute: the sum of ``core_percent`` over fixed and burst slices is at most 100. Best-effort slices use idle time and count 0.
  Their ``core_percent`` is their weight among each other and the share of the device that metering records for them. It is the
  share that the request names, or else the fraction of the device memory that the slice has, so that the recorded shares of
  best-effort slices do not exceed the device.

A request without an amount of memory gets the same fraction of the memory as of the compute, because a slice without a cap
would endanger the memory of all other slices. A fraction includes the reserve, so that two halves fit on a device, and ten
tenths.
"""

from __future__ import annotations

from collections.abc import Sequence

from calabash.model.compute import ALL_PERCENT
from calabash.model.device import Device
from calabash.model.errors import Reason
from calabash.model.request import ComputePolicy, GpuRequest, Isolation, ModeName, Slice
from calabash.model.units import format_mib
from calabash.sharing.amounts import amounts_misfit, requested_memory_mib
from calabash.sharing.protocol import Charge, DeviceOccupancy, Edits, HeldSlice, Misfit, shim_environment

SLICE_RESERVE_MIB = 32
SLICES_MAX = 64


def guaranteed_percent(core_percent: int, policy: ComputePolicy) -> int:
    """Return the guaranteed compute share: 0 for best-effort."""
    return 0 if policy is ComputePolicy.BEST_EFFORT else core_percent


def best_effort_percent(device: Device, resident_mib: int) -> int:
    """Return the compute share that is recorded for a best-effort slice whose request names none.

    This is the slice's percentage of the device memory, at least 1.
    """
    return max(1, min(100, 100 * resident_mib // max(1, device.memory_mib)))


def _spill_misfit(device: Device, request: GpuRequest) -> Misfit:
    if not device.spill_mib:
        return Misfit(reason=Reason.NOT_PERMITTED, message="spilling memory to the host is not enabled")
    return Misfit(
        reason=Reason.NO_HOST_MEMORY,
        message=f"the node allows {format_mib(device.spill_mib)} of spilled memory,"
        f" asked {format_mib(request.spill_mib)}",
    )


class Vgpu:
    """Mode ``vgpu``: slices of any memory size and compute percentage that the shim enforces."""

    name = ModeName("vgpu")
    isolation = Isolation.COOPERATIVE

    def rank(self, request: GpuRequest) -> int | None:
        del request
        return 10

    def fits(self, device: Device, held: Sequence[HeldSlice], request: GpuRequest) -> Slice | Misfit:
        wanted_mib = requested_memory_mib(device, request, reserve_mib=SLICE_RESERVE_MIB)
        if request.spill_mib > device.spill_mib:
            return _spill_misfit(device, request)
        wanted_mib -= request.spill_mib
        misfit = amounts_misfit(
            device,
            self.occupancy(device, held),
            memory_mib=wanted_mib,
            core_percent=guaranteed_percent(request.core_percent, request.policy),
            reserve_mib=SLICE_RESERVE_MIB,
            slices_max=SLICES_MAX,
        )
        if misfit is not None:
            return misfit
        unnamed = request.policy is ComputePolicy.BEST_EFFORT and request.core_percent == ALL_PERCENT
        return Slice(
            device=device.uuid,
            memory_mib=wanted_mib + request.spill_mib,
            core_percent=best_effort_percent(device, wanted_mib) if unnamed else request.core_percent,
            spill_mib=request.spill_mib,
        )

    def charge(self, device: Device, part: Slice, policy: ComputePolicy) -> Charge:
        del device
        return Charge(
            core_milli=10 * guaranteed_percent(part.core_percent, policy),
            memory_mib=part.resident_mib + SLICE_RESERVE_MIB,
            slices_max=SLICES_MAX,
        )

    def occupancy(self, device: Device, held: Sequence[HeldSlice]) -> DeviceOccupancy:
        memory_mib = sum(h.slice.resident_mib for h in held)
        core_percent = sum(guaranteed_percent(h.slice.core_percent, h.policy) for h in held)
        reserved_mib = SLICE_RESERVE_MIB * (len(held) + 1)
        return DeviceOccupancy(
            device=device.uuid,
            mode=self.name,
            slices=len(held),
            memory_mib=memory_mib,
            memory_free_mib=max(0, device.memory_mib - memory_mib - reserved_mib),
            core_percent=core_percent,
            core_free_percent=max(0, 100 - core_percent),
            slots_free=max(0, SLICES_MAX - len(held)),
        )

    def container_edits(self, slices: Sequence[Slice], *, library: str, slot: str) -> Edits:
        return Edits(environment=shim_environment(slices, library=library, slot=slot))


MODE = Vgpu()
