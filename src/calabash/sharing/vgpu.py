"""vGPU: software slices of any memory size and any compute percent, enforced inside the tenant by the shim.

Theory of operation. Every slice is promised ``memory_mib`` and ``core_percent``; a device is never promised twice:

* memory: the sum of all slices plus ``SLICE_RESERVE_MIB`` for each stays within the card. What NVML attributes to the
  tenant's processes (contexts, modules) counts inside the tenant's own cap; the reserve is for what it attributes to
  nobody, such as page tables and channels, which grows with the number of tenants and not with their size.
  Where the node allows it a slice may have more than it is promised on the card (``spill_mib``): only what is promised
  counts here, and what is spilled takes memory of the host, which the node bounds.
* compute: the sum of ``core_percent`` over fixed and burst slices stays within 100. Best-effort slices are promised
  nothing and run in the time that is left, so they count 0. Their ``core_percent`` is their weight among each other, and the
  share of the device that they are accounted with: what the request names, else the part of the device's memory that is
  promised to them. So the accounted shares of best-effort slices do not exceed the device, whatever their number.

A request without a memory amount gets the same fraction of the card's memory as of its compute: a slice without
a cap would make every neighbour's promise worthless. A fraction includes the reserve, so that equal parts of a card
are as many slices as they say: two halves fit, and ten tenths.
"""

from __future__ import annotations

from collections.abc import Sequence

from calabash.model.compute import ALL_PERCENT
from calabash.model.device import Device
from calabash.model.errors import Reason
from calabash.model.request import ComputePolicy, GpuRequest, Isolation, ModeName, Slice
from calabash.model.units import format_mib
from calabash.sharing.amounts import not_left, wanted_memory_mib
from calabash.sharing.protocol import Charge, DeviceDivision, Edits, HeldSlice, Misfit, shim_environment

SLICE_RESERVE_MIB = 32
SLICES_MAX = 64


def guaranteed_percent(core_percent: int, policy: ComputePolicy) -> int:
    """The compute share that is promised: none for best-effort."""
    return 0 if policy is ComputePolicy.BEST_EFFORT else core_percent


def best_effort_percent(device: Device, resident_mib: int) -> int:
    """Return the accounted share of a best-effort slice that names none: its part of the device's memory, at least 1."""
    return max(1, min(100, 100 * resident_mib // max(1, device.memory_mib)))


def _unspilled(device: Device, request: GpuRequest) -> Misfit:
    if not device.spill_mib:
        return Misfit(reason=Reason.NOT_PERMITTED, message="memory beyond the card is not allowed on it")
    return Misfit(
        reason=Reason.NO_HOST_MEMORY,
        message=f"the node gives {format_mib(device.spill_mib)} of its memory to what is spilled,"
        f" asked {format_mib(request.spill_mib)}",
    )


class Vgpu:
    """Slices of any size."""

    name = ModeName("vgpu")
    isolation = Isolation.COOPERATIVE

    def rank(self, request: GpuRequest) -> int | None:
        del request
        return 10

    def fits(self, device: Device, held: Sequence[HeldSlice], request: GpuRequest) -> Slice | Misfit:
        wanted_mib = wanted_memory_mib(device, request, reserve_mib=SLICE_RESERVE_MIB)
        if request.spill_mib > device.spill_mib:
            return _unspilled(device, request)
        wanted_mib -= request.spill_mib
        misfit = not_left(
            device,
            self.division(device, held),
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

    def division(self, device: Device, held: Sequence[HeldSlice]) -> DeviceDivision:
        memory_mib = sum(h.slice.resident_mib for h in held)
        core_percent = sum(guaranteed_percent(h.slice.core_percent, h.policy) for h in held)
        reserved_mib = SLICE_RESERVE_MIB * (len(held) + 1)
        return DeviceDivision(
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
