"""Waiting requests for MIG instances: the scheduler leaves room for them when it places others."""

from __future__ import annotations

from typing import Protocol

from calabash.model.request import AllocationId
from calabash.sched import Scheduler, Shape, set_mig_coming


class PlacedAllocations(Protocol):
    """Allocations that hold devices."""

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
        """Give the scheduler the profiles of all waiting requests.

        The next placements leave room for them where possible.
        """
        if self._profiles:
            waiting = (profiles for name, profiles in self._profiles.items() if name not in placed)
            set_mig_coming(self._scheduler, (profile for profiles in waiting for profile in profiles))
