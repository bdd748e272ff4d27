"""Waiting requests for MIG instances: where possible, the scheduler keeps positions free for them on the devices."""

from __future__ import annotations

from typing import Protocol

from calabash.model.request import AllocationId
from calabash.sched import Scheduler, Shape, set_mig_coming


class PlacedAllocations(Protocol):
    """Set of the allocations that hold devices, of which only membership is tested."""

    def __contains__(self, name: AllocationId, /) -> bool: ...


class Partitions:
    """MIG profiles of waiting and running requests, in the order in which they were submitted."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._profiles: dict[AllocationId, tuple[str, ...]] = {}

    def add(self, name: AllocationId, shape: Shape) -> None:
        """Add a submitted request. Does nothing if it needs no MIG instance."""
        if shape.mig_profile:
            self._profiles[name] = shape.mig_profiles

    def remove(self, name: AllocationId) -> None:
        """Remove a request that has ended."""
        self._profiles.pop(name, None)

    def announce_waiting(self, placed: PlacedAllocations) -> None:
        """Pass the MIG profiles of all waiting requests (those not in ``placed``) to the scheduler.

        Where possible, the next placements keep positions free for instances of these profiles.
        """
        if self._profiles:
            waiting = (profiles for name, profiles in self._profiles.items() if name not in placed)
            set_mig_coming(self._scheduler, (profile for profiles in waiting for profile in profiles))
