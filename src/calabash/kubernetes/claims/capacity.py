"""Amounts of slices as consumable capacity of devices in ResourceSlices.

The amounts are chosen so that the allocator of Kubernetes accepts a set of slices exactly if the sharing mode does.

Theory of operation. A software slice needs more memory of a device than its programs can use: the sharing mode adds a
reserve to each slice (``SLICE_RESERVE_MIB``). The allocator of Kubernetes knows no reserves. It only adds up the
consumed amounts, and rounds each requested amount up to ``min`` plus a whole number of steps. ``min`` is therefore
published as one step plus the reserve. A request of whole steps is then rounded up by exactly the reserve, so that the
consumed amount is that of the slice with its reserve. With time slicing, a slice without an amount has no limit and
consumes nothing. The reserves of all possible slices are therefore subtracted from the capacity in advance.
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
    """Return the memory, in MiB, that a slice of a shared device consumes in addition to its own amount."""
    return _RESERVE_MIB[mode]


def turns_mib(device: Device) -> int:
    """Return the greatest sum, in MiB, of the memory limits of all slices of a time-sliced device."""
    return max(0, device.memory_mib - timeslice.SLICE_RESERVE_MIB * timeslice.replicas_of(device))


def consumed(written: str | None, *, what: str) -> int:
    """Parse an amount that an allocation consumes, as a whole number.

    Args:
        written: the amount as a Kubernetes quantity; None if the allocation does not have it.
        what: name of the capacity, for error messages.

    Raises:
        CalabashError: the amount is missing or not a whole number.
    """
    amount = parse_quantity(written, what=what) if written is not None else None
    if amount is None or amount.denominator != 1 or amount < 0:
        raise CalabashError(f"the allocation consumes {written or 'nothing'} as {what}, which is no whole number")
    return int(amount)


def consumed_mib(written: str | None, *, what: str) -> int:
    """Parse an amount of memory that an allocation consumes, in MiB; see ``consumed``.

    Raises:
        CalabashError: the amount is missing or not a whole number of MiB.
    """
    amount = consumed(written, what=what)
    if amount % MIB:
        raise CalabashError(f"the allocation consumes {amount} bytes as {what}, which are no whole MiB")
    return amount // MIB
