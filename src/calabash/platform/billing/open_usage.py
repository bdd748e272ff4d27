"""Interface to usage of running allocations that has no usage record yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from calabash.model.allocation import UsageRecord


class RunningUsage(Protocol):
    """Usage of running allocations since their last usage record."""

    def records(self) -> tuple[Sequence[UsageRecord], float]:
        """Return the usage as records that are not in the store, and the time in seconds up to which usage is then complete."""
        ...

    def write(self) -> tuple[float, Mapping[str, float]]:
        """Write the usage to the store. Raises CalabashError.

        Return the time in seconds up to which usage is complete in the store, and the tenants for which it is complete only up
        to an earlier time.
        """
        ...
