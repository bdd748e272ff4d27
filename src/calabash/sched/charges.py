"""Charge for a request: the amounts by which it counts against the quota and the limit of its queue.

The charge depends on the shape of the request. Of each device it is the largest of three shares: that of the compute,
of the memory, and of the slices that the request takes. CPU and host memory are charged as requested.

A device takes a limited number of slices (``Shape.gpu_slices_max``), so a slice of a hundredth of a device may keep others from
using more than that. A slice is therefore charged at least the device divided by that number: a device that is full by number
of slices is charged as a whole device. These least charges are rounded down to multiples of ``2 ** -20`` thousandths, so that
sums of charges are exact and never exceed a whole device.
"""

from __future__ import annotations

from calabash.model.mig import split_profile
from calabash.sched.amounts import Amount
from calabash.sched.cluster.arrays import Cluster
from calabash.sched.cluster.shape import SHAPES_KEPT_MAX, WHOLE_MILLI, Shape

_LEAST_PARTS = 1 << 20


class Charges:
    """Charges for requests on one cluster, cached by shape.

    Args:
        card_memory_mib: card memory at which a memory-only slice counts as a whole device; 0 takes the smallest card.
    """

    def __init__(self, cluster: Cluster, card_memory_mib: int) -> None:
        self._cluster = cluster
        self._card_memory_mib = card_memory_mib
        self._known: dict[Shape, Amount] = {}

    def charge(self, shape: Shape) -> Amount:
        """Return the amount that a queue is charged for a running request of the shape."""
        charge = self._known.get(shape)
        if charge is None:
            if len(self._known) >= SHAPES_KEPT_MAX:
                self._known.clear()
            charge = self._known[shape] = Amount(
                shape.gpu_count * self._device_milli(shape), shape.cpu_milli, shape.memory_mib
            )
        return charge

    def _device_milli(self, shape: Shape) -> float:
        if not shape.gpu_count or shape.whole:
            return WHOLE_MILLI if shape.gpu_count else 0
        if shape.mig_profile:
            return min(WHOLE_MILLI, sum(_mig_milli(name) for name in shape.mig_profiles))
        memory_milli = 0
        if shape.gpu_memory_mib and self._whole_card_mib():
            memory_milli = min(WHOLE_MILLI, -(-shape.gpu_memory_mib * WHOLE_MILLI // self._whole_card_mib()))
        return max(shape.gpu_milli, memory_milli, _slices_milli(shape))

    def _whole_card_mib(self) -> int:
        """Return the card memory, in MiB, that counts as a whole device; 0 if the cluster has no cards.

        The value is fixed as soon as the cluster has cards, so that the amount given back equals the amount charged.
        """
        if not self._card_memory_mib:
            cards = self._cluster.gpu_mib[self._cluster.gpu_mib > 0]
            self._card_memory_mib = int(cards.min()) if len(cards) else 0
        return self._card_memory_mib


def is_charged_by_count(shape: Shape, charge: Amount) -> bool:
    """Return True if the charge is determined by the number of slices and not by their compute and memory."""
    return bool(shape.gpu_slices_max) and charge.gpu_milli <= shape.gpu_count * _slices_milli(shape)


def _slices_milli(shape: Shape) -> float:
    """Return the least charge, in device milli, for the number of slices that the shape takes of one device."""
    if not shape.gpu_slices_max:
        return 0
    return shape.gpu_slices * WHOLE_MILLI * _LEAST_PARTS // shape.gpu_slices_max / _LEAST_PARTS


def _mig_milli(profile: str) -> int:
    """Return the compute of a MIG profile in milli: 3/7 of a device for ``3g.40gb``, 1/7 for ``1c.3g.40gb``, rounded up."""
    slices, instance = split_profile(profile)
    return min(WHOLE_MILLI, -(-(slices or int(instance.partition("g")[0])) * WHOLE_MILLI // 7))
