"""What waits for parts of cards, and what stands on the cards: the scheduler looks ahead, and reuses what is idle."""

from __future__ import annotations

from collections.abc import Container

from calabash.sched import Scheduler, Shape, set_mig_coming


class Partitions:
    """Profiles of what waits or runs, in the order in which it was submitted."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._profiles: dict[str, str] = {}

    def submitted(self, name: str, shape: Shape) -> None:
        """A request joined."""
        if shape.mig_profile:
            self._profiles[name] = shape.mig_profile

    def finished(self, name: str) -> None:
        """It is gone."""
        self._profiles.pop(name, None)

    def look_ahead(self, placed: Container[str]) -> None:
        """Who is placed next leaves room for all that waits, where it can."""
        if self._profiles:
            set_mig_coming(self._scheduler, (p for name, p in self._profiles.items() if name not in placed))
