"""What MIG has cut of the devices of a cluster: a part of the columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from calabash.model.mig import MigGeometry, MigInstance, MigPlace, MigProfile, MigState, occupied
from calabash.model.mig_plan import possible_places, together
from calabash.sched.cluster.shape import NodePlacement, Shape

MigChange = Callable[[MigState, MigProfile, int, int], MigState]


class MigCuts:
    """By (row, device): what is taken, and the instances that stand there.

    Attributes:
        geometries: how devices can be cut, by their number in ``gpu_geometry`` [N, G].
        mig_coming: profiles that wait, in order.
    """

    gpu_geometry: npt.NDArray[np.int16]

    def __init__(self) -> None:
        self.geometries: list[MigGeometry | None] = [None]
        self.mig_states: dict[tuple[int, int], MigState] = {}
        self.mig_instances: dict[tuple[int, int], tuple[MigInstance, ...]] = {}
        self.mig_coming: list[str] = []

    def mig_state(self, row: int, device: int) -> MigState:
        """What MIG instances take of a device."""
        return self.mig_states.get((row, device), MigState())

    def mig_profiles(
        self, row: int, device: int, names: Sequence[str]
    ) -> tuple[MigGeometry, tuple[MigProfile, ...]] | None:
        """How a device is cut, and its profiles of these names; None where it has not all of them."""
        geometry = self.geometries[int(self.gpu_geometry[row, device])]
        if geometry is None:
            return None
        found = tuple(profile for name in names if (profile := geometry.profile(name)) is not None)
        return (geometry, found) if len(found) == len(names) else None

    def mig_has_room(self, row: int, device: int, names: Sequence[str]) -> bool:
        """Whether MIG instances of these profiles have a place together."""
        found = self.mig_profiles(row, device, names)
        if found is None:
            return False
        geometry, profiles = found
        state, instances = self.mig_state(row, device), self.mig_instances.get((row, device), ())
        if len(profiles) == 1:
            return bool(possible_places(geometry, profiles[0], state, instances))
        return together(geometry, names, state, instances) is not None

    def mig_may_stand(
        self, row: int, device: int, names: Sequence[str], places: Sequence[MigPlace], *, held: bool
    ) -> bool:
        """Whether they may be exactly there, in this order; ``held``: what stands there is theirs."""
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
            state = occupied(state, profile, *place)
        return True

    def mig_cut(self, shape: Shape, placement: NodePlacement, change: MigChange) -> None:
        """Take the places of a placement, or give them back."""
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
