"""Sharing mode ``exclusive``: one allocation has the whole device. Nothing is shared, so isolation is at level hardware."""

from __future__ import annotations

from collections.abc import Sequence

from calabash.model.device import Device
from calabash.model.errors import Reason
from calabash.model.request import ComputePolicy, GpuRequest, Isolation, ModeName, Slice
from calabash.model.units import format_mib
from calabash.sharing.protocol import Charge, DeviceOccupancy, Edits, HeldSlice, Misfit, shim_environment


class Exclusive:
    """Mode ``exclusive``: an allocation has the whole device, which must have at least the requested memory."""

    name = ModeName("exclusive")
    isolation = Isolation.HARDWARE

    def rank(self, request: GpuRequest) -> int | None:
        if request.memory_mib is None and request.memory_milli in (None, 1000) and request.core_percent == 100:
            return 0
        return 90 if request.isolation > Isolation.COOPERATIVE else None

    def fits(self, device: Device, held: Sequence[HeldSlice], request: GpuRequest) -> Slice | Misfit:
        wanted = request.memory_mib or 0
        if wanted > device.memory_mib:
            return Misfit(
                reason=Reason.TOO_LARGE,
                message=f"{device.model} has {format_mib(device.memory_mib)}, asked {format_mib(wanted)}",
            )
        if held:
            return Misfit(reason=Reason.NO_CAPACITY, message=f"has {len(held)} slices, asked the whole device")
        return Slice(device=device.uuid, memory_mib=device.memory_mib, core_percent=100)

    def charge(self, device: Device, part: Slice, policy: ComputePolicy) -> Charge:
        del device, part, policy
        return Charge(core_milli=1000)

    def occupancy(self, device: Device, held: Sequence[HeldSlice]) -> DeviceOccupancy:
        taken = bool(held)
        return DeviceOccupancy(
            device=device.uuid,
            mode=self.name,
            slices=len(held),
            memory_mib=device.memory_mib if taken else 0,
            memory_free_mib=0 if taken else device.memory_mib,
            core_percent=100 if taken else 0,
            core_free_percent=0 if taken else 100,
            slots_free=0 if taken else 1,
        )

    def container_edits(self, slices: Sequence[Slice], *, library: str, slot: str) -> Edits:
        return Edits(environment=shim_environment(slices, library=library, slot=slot))


MODE = Exclusive()
