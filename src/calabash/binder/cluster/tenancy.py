"""Slices that are held on the devices of a cluster; sharing modes check new slices against them."""

from __future__ import annotations

from collections.abc import Iterable

from calabash.binder.cluster.bundle import Bundle, Held, Views, phases_on
from calabash.model.device import DeviceUuid, NodeName
from calabash.model.request import AllocationId, ModeName, Placement
from calabash.sharing.foreign import with_unmanaged_memory
from calabash.sharing.protocol import HeldSlice
from calabash.sharing.registry import mode_of_device
from calabash.sharing.vgpu import guaranteed_percent

Place = tuple[NodeName, DeviceUuid]


class HeldSlices:
    """Held slices, by device.

    An allocation whose parts do not all run at once holds different slices in different phases. It is counted with its
    most demanding phase, chosen separately for memory, compute and number of slices.
    """

    def __init__(self) -> None:
        self._by_device: dict[Place, dict[AllocationId, tuple[ModeName, tuple[Held, ...]]]] = {}
        self._places: dict[AllocationId, tuple[Place, ...]] = {}

    def add(self, holder: AllocationId, bundle: Bundle, placements: Iterable[tuple[int, Placement]]) -> None:
        """Add the slices of an allocation. ``placements`` are pairs of the index of a part and its placement."""
        here: dict[Place, list[tuple[int, ModeName, HeldSlice]]] = {}
        for number, placement in placements:
            for part in placement.slices:
                held = HeldSlice(slice=part, policy=bundle.parts[number].request.policy)
                here.setdefault((placement.node, part.device), []).append(
                    (number, mode_of_device(placement.mode), held)
                )
        for place, found in here.items():
            phases = phases_on(bundle, [(number, held.slice) for number, _, held in found])
            self._by_device.setdefault(place, {})[holder] = (found[0][1], phases)
        self._places[holder] = tuple(here)

    def remove(self, holder: AllocationId) -> None:
        """Remove all slices of an allocation."""
        for place in self._places.pop(holder, ()):
            there = self._by_device[place]
            del there[holder]
            if not there:
                del self._by_device[place]

    def rename(self, holder: AllocationId, name: AllocationId) -> None:
        """Transfer all slices of one allocation to the ID ``name``."""
        places = self._places.pop(holder, ())
        for place in places:
            there = self._by_device[place]
            there[name] = there.pop(holder)
        self._places[name] = places

    def __contains__(self, holder: AllocationId) -> bool:
        return holder in self._places

    def is_shared(self, place: Place) -> bool:
        """Return True if any slice of the device is held."""
        return place in self._by_device

    def views(self, place: Place, *, foreign_mib: int = 0) -> Views:
        """Return the mode of a device and the views of its held slices.

        A view is a set of slices that may be in use at the same time. There is one view if no holder has more than one
        phase. Otherwise there are three: in the first each holder is in its phase with the most memory, in the second
        in that with the most compute, in the third in that with the most slices.

        Args:
            foreign_mib: unmanaged memory of the device, which is one more slice of each view.
        """
        there = self._by_device.get(place, {})
        mode = next((found[0] for found in there.values()), None)
        if all(len(phases) == 1 for _, phases in there.values()):
            views = [tuple(h for _, phases in there.values() for h in phases[0])]
        else:
            views = [
                tuple(h for _, phases in there.values() for h in max(phases, key=weight))
                for weight in (_memory, _cores, len)
            ]
        beside = [with_unmanaged_memory(place[1], mode, view, foreign_mib) for view in views]
        return beside[0][0], tuple(view for _, view in beside)


def _memory(held: Held) -> int:
    return sum(h.slice.resident_mib for h in held)


def _cores(held: Held) -> int:
    return sum(guaranteed_percent(h.slice.core_percent, h.policy) for h in held)
