"""Brokered: a software slice that a worker uses in its tenant's stead, so that the tenant has neither driver nor device.

Theory of operation. On the device it is a slice like any other of ``vgpu``: promised, charged and enforced by the same
rules, beside slices of that mode. So a device does not change its mode for it, and what is left of a card is left to
both. What differs is who runs in the slice: not the tenant's program, but a process that the node starts for it, and that
the program reaches through a library of ours and a socket.

Memory beyond the card is left to programs that page it themselves.
"""

from __future__ import annotations

from collections.abc import Sequence

from calabash.model.device import Device
from calabash.model.errors import Reason
from calabash.model.request import ComputePolicy, GpuRequest, Isolation, ModeName, Slice
from calabash.sharing import vgpu
from calabash.sharing.protocol import Charge, DeviceDivision, Edits, HeldSlice, Misfit


class Brokered:
    """Slices whose tenants never touch the card."""

    name = ModeName("brokered")
    beside = vgpu.MODE.name
    isolation = Isolation.BROKERED

    def rank(self, request: GpuRequest) -> int | None:
        """First for those who ask for just this level, also of a whole card: hardware of one's own comes with a driver."""
        return -1 if request.isolation is Isolation.BROKERED else None

    def fits(self, device: Device, held: Sequence[HeldSlice], request: GpuRequest) -> Slice | Misfit:
        if request.spill_mib:
            return Misfit(reason=Reason.MODE_CONFLICT, message=f"mode {self.name} does not page memory")
        return vgpu.MODE.fits(device, held, request)

    def charge(self, device: Device, part: Slice, policy: ComputePolicy) -> Charge:
        return vgpu.MODE.charge(device, part, policy)

    def division(self, device: Device, held: Sequence[HeldSlice]) -> DeviceDivision:
        return vgpu.MODE.division(device, held)

    def container_edits(self, slices: Sequence[Slice], *, library: str, slot: str) -> Edits:
        """Nothing of the slice: where its worker is reached, only the node can say."""
        del slices, library, slot
        return Edits()


MODE = Brokered()
