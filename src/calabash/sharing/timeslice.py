"""Time-slicing: several tenants use one card in turns that the driver chooses; memory is not split.

Nothing is enforced, so nothing is promised either: a request that asks for an amount of memory or compute does not
fit here and is told which mode does it.
"""

from __future__ import annotations

from collections.abc import Sequence

from calabash.model.device import Device
from calabash.model.errors import Reason
from calabash.model.request import ComputePolicy, GpuRequest, Isolation, ModeName, Slice
from calabash.sharing.protocol import Charge, DeviceDivision, Edits, HeldSlice, Misfit, shim_environment

SHARERS_MAX = 8


class TimeSlice:
    """Up to SHARERS_MAX tenants in turns."""

    name = ModeName("timeslice")
    isolation = Isolation.COOPERATIVE

    def rank(self, request: GpuRequest) -> int | None:
        del request
        return None  # only when asked for by name: it promises nothing

    def fits(self, device: Device, held: Sequence[HeldSlice], request: GpuRequest) -> Slice | Misfit:
        if request.memory_mib is not None or request.memory_milli is not None or request.core_percent != 100:
            return Misfit(reason=Reason.MODE_CONFLICT, message="timeslice splits neither memory nor compute")
        if len(held) >= SHARERS_MAX:
            return Misfit(reason=Reason.NO_CAPACITY, message=f"{len(held)} of {SHARERS_MAX} sharers are on it")
        return Slice(device=device.uuid, memory_mib=0, core_percent=0)

    def charge(self, part: Slice, policy: ComputePolicy) -> Charge:
        del part, policy
        return Charge(core_milli=1000 // SHARERS_MAX)

    def division(self, device: Device, held: Sequence[HeldSlice]) -> DeviceDivision:
        return DeviceDivision(
            device=device.uuid,
            mode=self.name,
            slices=len(held),
            memory_mib=0,
            memory_free_mib=device.memory_mib,
            core_percent=0,
            core_free_percent=100,
            slots_free=max(0, SHARERS_MAX - len(held)),
        )

    def container_edits(self, slices: Sequence[Slice], *, library: str, slot: str) -> Edits:
        return Edits(environment=shim_environment(slices, library=library, slot=slot))


MODE = TimeSlice()
