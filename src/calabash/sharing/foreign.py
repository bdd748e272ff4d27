"""Memory of unmanaged processes on a device, counted as an additional slice."""

from __future__ import annotations

from collections.abc import Sequence

from calabash.model.device import DeviceUuid
from calabash.model.request import ComputePolicy, ModeName, Slice
from calabash.sharing.protocol import HeldSlice

FOREIGN_MODE = ModeName("vgpu")  # mode of a device that only unmanaged processes use


def with_unmanaged_memory(
    uuid: DeviceUuid, mode: ModeName | None, held: Sequence[HeldSlice], foreign_mib: int
) -> tuple[ModeName | None, tuple[HeldSlice, ...]]:
    """Return the mode and the slices of a device with unmanaged processes counted as a best-effort slice of mode vgpu.

    Args:
        mode: the mode of the device; None if it has no slices.
        held: slices of allocations.
        foreign_mib: memory of unmanaged processes; 0: there are none, and mode and slices are returned unchanged.
    """
    if foreign_mib <= 0:
        return mode, tuple(held)
    foreign = Slice(device=uuid, memory_mib=foreign_mib, core_percent=1)
    return mode or FOREIGN_MODE, (*held, HeldSlice(slice=foreign, policy=ComputePolicy.BEST_EFFORT))
