"""What waits for parts of cards, and what stands on the cards: the scheduler looks ahead, and reuses what is idle."""

from __future__ import annotations

from typing import Protocol

from calabash.model.request import AllocationId
from calabash.sched import Scheduler, Shape, set_mig_coming


class Placed(Protocol):
    """Who has its place."""

    def __contains__(self, name: AllocationId, /) -> bool: ...


class Partitions:
    """Profiles of what waits or runs, in the order in which it was submitted."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._profiles: dict[AllocationId, tuple[str, ...]] = {}

    def submitted(self, name: AllocationId, shape: Shape) -> None:
        """A request joined."""
        if shape.mig_profile:
            self._profiles[name] = shape.mig_profiles

    def finished(self, name: AllocationId) -> None:
        """It is gone."""
        self._profiles.pop(name, None)

    def look_ahead(self, placed: Placed) -> None:
        """Who is placed next leaves room for all that waits, where it can."""
        if self._profiles:
            waiting = (profiles for name, profiles in self._profiles.items() if name not in placed)
            set_mig_coming(self._scheduler, (profile for profiles in waiting for profile in profiles))
