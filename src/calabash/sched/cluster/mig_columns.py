"""MIG state of the devices of a cluster: positions that placements take, existing instances, and geometries."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from calabash.model.mig import MigGeometry, MigInstance, MigPlace, MigProfile, MigState, with_instance
from calabash.model.mig_plan import place_together, possible_places
from calabash.sched.cluster.shape import NodePlacement, Shape

MigChange = Callable[[MigState, MigProfile, int, int], MigState]


class MigColumns:
    """MIG state of devices, by (row, device).

    Attributes:
        geometries: MIG geometries by the numbers in the array ``gpu_geometry``; None for devices without MIG.
        mig_states: memory and compute slices that placements take. Devices without placements are left out.
        mig_instances: existing MIG instances, used or unused.
        mig_coming: MIG profiles of waiting requests, in order.
    """

    gpu_geometry: npt.NDArray[np.int16]

    def __init__(self) -> None:
        self.geometries: list[MigGeometry | None] = [None]
        self.mig_states: dict[tuple[int, int], MigState] = {}
        self.mig_instances: dict[tuple[int, int], tuple[MigInstance, ...]] = {}
        self.mig_coming: list[str] = []

    def mig_state(self, row: int, device: int) -> MigState:
        """Return the memory and compute slices of a device that placements take."""
        return self.mig_states.get((row, device), MigState())

    def mig_profiles(
        self, row: int, device: int, names: Sequence[str]
    ) -> tuple[MigGeometry, tuple[MigProfile, ...]] | None:
        """Return the MIG geometry of a device, and its profiles with the given names; None if it lacks one of them."""
        geometry = self.geometries[int(self.gpu_geometry[row, device])]
        if geometry is None:
            return None
        found = tuple(profile for name in names if (profile := geometry.profile(name)) is not None)
        return (geometry, found) if len(found) == len(names) else None

    def mig_fits(self, row: int, device: int, names: Sequence[str]) -> bool:
        """Return True if MIG instances of these profiles fit on a device together."""
        found = self.mig_profiles(row, device, names)
        if found is None:
            return False
        geometry, profiles = found
        state, instances = self.mig_state(row, device), self.mig_instances.get((row, device), ())
        if len(profiles) == 1:
            return bool(possible_places(geometry, profiles[0], state, instances))
        return place_together(geometry, names, state, instances) is not None

    def mig_fits_at(
        self, row: int, device: int, names: Sequence[str], places: Sequence[MigPlace], *, held: bool
    ) -> bool:
        """Return True if MIG instances of these profiles can be at these positions of a device.

        Args:
            places: one position per profile; a position with a negative start is unknown and not checked.
            held: existing instances belong to the request itself, and are ignored.
        """
        found = self.mig_profiles(row, device, names)
        if found is None or len(places) != len(names):
            return False
        geometry, profiles = found
        state, instances = self.mig_state(row, device), self.mig_instances.get((row, device), ())
        if held:
            instances = ()
        for profile, place in zip(profiles, places, strict=True):
            if place.start < 0:
                continue
            if place not in possible_places(geometry, profile, state, instances):
                return False
            state = with_instance(state, profile, *place)
        return True

    def change_mig_states(self, shape: Shape, placement: NodePlacement, change: MigChange) -> None:
        """Take or release the MIG positions of a placement.

        Args:
            change: ``with_instance`` to take the positions, ``without_instance`` to release them.
        """
        for device, places in zip(placement.devices, placement.mig_places, strict=True):
            found = self.mig_profiles(placement.node, device, shape.mig_profiles)
            if found is not None:
                key = (placement.node, device)
                state = self.mig_state(*key)
                for profile, place in zip(found[1], places, strict=True):
                    if place.start >= 0:
                        state = change(state, profile, *place)
                if state == MigState():
                    self.mig_states.pop(key, None)
                else:
                    self.mig_states[key] = state
