"""Time-slicing: several tenants use one card in turns that the driver chooses; memory is split for those who ask.

Theory of operation. A card has as many places as its operator gives it (``Device.replicas``). Compute is not divided: who
is alone has all of it, and turns are as long as the driver makes them, or of the class that the operator wants. Without an
amount of memory a tenant has no cap, takes what it finds, and is promised nothing. An amount is a cap in the tenant's own
process, as software slices have it, and the caps of a card stay within it, with ``SLICE_RESERVE_MIB`` for each; whether
that memory is there all the time depends on the neighbours who have none.
"""

from __future__ import annotations

from collections.abc import Sequence

from calabash.model.device import REPLICAS_MAX, Device
from calabash.model.errors import Reason
from calabash.model.request import ComputePolicy, GpuRequest, Isolation, ModeName, Slice
from calabash.sharing.amounts import not_left, wanted_memory_mib
from calabash.sharing.protocol import Charge, DeviceDivision, Edits, HeldSlice, Misfit, shim_environment

SLICE_RESERVE_MIB = 32


def sharers_of(device: Device) -> int:
    """How many tenants may be on it."""
    return max(1, min(device.replicas, REPLICAS_MAX))


def capped_mib(part: Slice) -> int:
    """What a tenant's cap takes of a card; none takes nothing."""
    return part.memory_mib + SLICE_RESERVE_MIB if part.memory_mib else 0


class TimeSlice:
    """As many tenants in turns as the card has places."""

    name = ModeName("timeslice")
    isolation = Isolation.COOPERATIVE

    def rank(self, request: GpuRequest) -> int | None:
        del request
        return None  # only when asked for by name: it promises nothing

    def fits(self, device: Device, held: Sequence[HeldSlice], request: GpuRequest) -> Slice | Misfit:
        if request.core_percent != 100:
            message = f"timeslice does not split compute, asked {request.core_percent}%"
            return Misfit(reason=Reason.MODE_CONFLICT, message=message)
        if len(held) >= sharers_of(device):
            message = f"{len(held)} of {sharers_of(device)} replicas are taken"
            return Misfit(reason=Reason.NO_CAPACITY, message=message)
        if request.memory_mib is None and request.memory_milli is None:
            return Slice(device=device.uuid, memory_mib=0, core_percent=0)
        wanted_mib = wanted_memory_mib(device, request, reserve_mib=SLICE_RESERVE_MIB)
        misfit = not_left(
            device,
            self.division(device, held),
            memory_mib=wanted_mib,
            core_percent=0,
            reserve_mib=SLICE_RESERVE_MIB,
            slices_max=sharers_of(device),
        )
        return misfit or Slice(device=device.uuid, memory_mib=wanted_mib, core_percent=0)

    def charge(self, device: Device, part: Slice, policy: ComputePolicy) -> Charge:
        del policy
        core_milli = 1000 // sharers_of(device)
        if core_milli == 1000:
            return Charge(core_milli=core_milli)  # the whole card: nobody is beside it
        return Charge(core_milli=core_milli, memory_mib=capped_mib(part), slices_max=sharers_of(device))

    def division(self, device: Device, held: Sequence[HeldSlice]) -> DeviceDivision:
        taken_mib = sum(capped_mib(h.slice) for h in held)
        return DeviceDivision(
            device=device.uuid,
            mode=self.name,
            slices=len(held),
            memory_mib=sum(h.slice.memory_mib for h in held),
            memory_free_mib=max(0, device.memory_mib - taken_mib - SLICE_RESERVE_MIB),
            core_percent=0,
            core_free_percent=100,
            slots_free=max(0, sharers_of(device) - len(held)),
        )

    def container_edits(self, slices: Sequence[Slice], *, library: str, slot: str) -> Edits:
        return Edits(environment=shim_environment(slices, library=library, slot=slot))


MODE = TimeSlice()
