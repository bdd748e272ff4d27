"""How amounts of a slice stand in a device's consumable capacity, so that what fits there also fits by the sharing mode.

Theory of operation. A software slice takes more of a card than it is promised: a reserve for each, which the sharing modes
count (``SLICE_RESERVE_MIB``). The allocator of Kubernetes only adds up what was consumed. It rounds what was asked up to
``min`` plus whole steps; with ``min`` one step and the reserve, a request of whole steps is rounded up by just the reserve. So
what is consumed is the slice and its reserve, and their sum stays within the card exactly when the mode says so. Where no
amount means no cap (turns), nothing can be added to nothing, and the reserves of all places are kept from the start.
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
    """What a slice of a shared device consumes of its memory beside what it is promised."""
    return _RESERVE_MIB[mode]


def turns_mib(device: Device) -> int:
    """Memory that caps of those who use a card in turns may sum up to."""
    return max(0, device.memory_mib - timeslice.SLICE_RESERVE_MIB * timeslice.replicas_of(device))


def consumed(written: str | None, *, what: str) -> int:
    """A count that was consumed. Raises CalabashError when it is none, or no whole number."""
    amount = parse_quantity(written, what=what) if written is not None else None
    if amount is None or amount.denominator != 1 or amount < 0:
        raise CalabashError(f"the allocation consumes {written or 'nothing'} as {what}, which is no whole number")
    return int(amount)


def consumed_mib(written: str | None, *, what: str) -> int:
    """Memory that was consumed, in whole MiB. Raises CalabashError for anything else."""
    amount = consumed(written, what=what)
    if amount % MIB:
        raise CalabashError(f"the allocation consumes {amount} bytes as {what}, which are no whole MiB")
    return amount // MIB
