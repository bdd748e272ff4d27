"""Sharing mode ``brokered``: a software slice that a worker process uses on behalf of the tenant's program.

Theory of operation. On the device the slice is counted, charged and enforced like a slice of mode ``vgpu``, and a device can
have slices of both modes at the same time. The tenant's program does not run in the slice and has neither driver nor device.
The node starts a worker process in the slice, and the program sends its CUDA calls to the worker through a client library and a
socket.

This mode does not support spilling of memory to the host.
"""

from __future__ import annotations

from collections.abc import Sequence

from calabash.model.device import Device
from calabash.model.errors import Reason
from calabash.model.request import ComputePolicy, GpuRequest, Isolation, ModeName, Slice
from calabash.sharing import vgpu
from calabash.sharing.protocol import Charge, DeviceOccupancy, Edits, HeldSlice, Misfit


class Brokered:
    """Mode ``brokered``: slices that a worker process on the node uses on behalf of the tenant's program."""

    name = ModeName("brokered")
    beside = vgpu.MODE.name
    isolation = Isolation.BROKERED

    def rank(self, request: GpuRequest) -> int | None:
        """Return the best rank for a request at isolation level ``brokered``, and None at other levels.

        The rank is the best one for whole devices too: in mode ``exclusive`` the tenant's program would have access to
        the driver.
        """
        return -1 if request.isolation is Isolation.BROKERED else None

    def fits(self, device: Device, held: Sequence[HeldSlice], request: GpuRequest) -> Slice | Misfit:
        if request.spill_mib:
            return Misfit(reason=Reason.MODE_CONFLICT, message=f"mode {self.name} does not page memory")
        return vgpu.MODE.fits(device, held, request)

    def charge(self, device: Device, part: Slice, policy: ComputePolicy) -> Charge:
        return vgpu.MODE.charge(device, part, policy)

    def occupancy(self, device: Device, held: Sequence[HeldSlice]) -> DeviceOccupancy:
        return vgpu.MODE.occupancy(device, held)

    def container_edits(self, slices: Sequence[Slice], *, library: str, slot: str) -> Edits:
        """Return no edits: the node adds the socket of the worker."""
        del slices, library, slot
        return Edits()


MODE = Brokered()
