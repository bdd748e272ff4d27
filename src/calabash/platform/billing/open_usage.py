"""Interface to usage of running allocations that has no usage record yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from calabash.model.allocation import UsageRecord


class RunningUsage(Protocol):
    """Usage of running allocations since their last usage record."""

    def records(self) -> tuple[Sequence[UsageRecord], float]:
        """Return the usage as records, and the time up to which usage is complete together with these records.

        The records are not written to the store. The time is in seconds since the epoch.
        """
        ...

    def write(self) -> tuple[float, Mapping[str, float]]:
        """Write the usage to the store. Raises CalabashError.

        Returns:
            The time (seconds since the epoch) up to which usage is complete in the store, and, by tenant, earlier times
            for tenants whose usage is complete only up to that time.
        """
        ...
