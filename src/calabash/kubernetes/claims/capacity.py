"""Amounts of a slice in the consumable capacity of a device, chosen so that the allocator agrees with the sharing mode.

Theory of operation. A software slice takes more of a device than the amount it is given: each has a reserve, which the
sharing modes count (``SLICE_RESERVE_MIB``). The allocator of Kubernetes only adds up consumed amounts. It rounds a requested
amount up to ``min`` plus whole steps. With ``min`` set to one step plus the reserve, a request of whole steps is rounded up
by the reserve. So the consumed amount is the slice with its reserve, and the sum is within the device exactly if the mode
allows it. With time slicing, where no amount means no limit, the reserves of all slices are subtracted from the start.
"""

from __future__ import annotations

from calabash.kubernetes.objects.quantity import parse_quantity
from calabash.model.device import Device
from calabash.model.errors import CalabashError
from calabash.model.request import MPS_MODE, ModeName
from calabash.model.units import MIB
from calabash.sharing import mps, timeslice, vgpu

MEMORY = "memory"
CORES = "cores"
SLICES = "slices"
STEP_MIB = 128
_RESERVE_MIB = {vgpu.MODE.name: vgpu.SLICE_RESERVE_MIB, MPS_MODE: mps.SLICE_RESERVE_MIB, timeslice.MODE.name: 0}


def reserve_mib(mode: ModeName) -> int:
    """Return the memory that a slice of a shared device consumes in addition to its own amount."""
    return _RESERVE_MIB[mode]


def turns_mib(device: Device) -> int:
    """Return the memory of a time-sliced device that its slices' limits may sum up to."""
    return max(0, device.memory_mib - timeslice.SLICE_RESERVE_MIB * timeslice.replicas_of(device))


def consumed(written: str | None, *, what: str) -> int:
    """Return a consumed count. Raises CalabashError if it is missing or not a whole number."""
    amount = parse_quantity(written, what=what) if written is not None else None
    if amount is None or amount.denominator != 1 or amount < 0:
        raise CalabashError(f"the allocation consumes {written or 'nothing'} as {what}, which is no whole number")
    return int(amount)


def consumed_mib(written: str | None, *, what: str) -> int:
    """Return consumed memory in MiB. Raises CalabashError if it is not a whole number of MiB."""
    amount = consumed(written, what=what)
    if amount % MIB:
        raise CalabashError(f"the allocation consumes {amount} bytes as {what}, which are no whole MiB")
    return amount // MIB
