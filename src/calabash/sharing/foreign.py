"""What processes without a slice hold of a device, as a slice beside which everything granted must fit."""

from __future__ import annotations

from collections.abc import Sequence

from calabash.model.device import DeviceUuid
from calabash.model.request import ComputePolicy, ModeName, Slice
from calabash.sharing.protocol import HeldSlice

FOREIGN_MODE = ModeName("vgpu")  # they share the device without being held to anything: by memory, as far as it goes


def beside_foreign(
    uuid: DeviceUuid, mode: ModeName | None, held: Sequence[HeldSlice], foreign_mib: int
) -> tuple[ModeName | None, tuple[HeldSlice, ...]]:
    """Mode and slices of a device as they are to be counted; ``foreign_mib`` 0: nobody foreign is on it."""
    if foreign_mib <= 0:
        return mode, tuple(held)
    foreign = Slice(device=uuid, memory_mib=foreign_mib, core_percent=1)
    return mode or FOREIGN_MODE, (*held, HeldSlice(slice=foreign, policy=ComputePolicy.BEST_EFFORT))
