"""Usage that no usage record has yet, as billing asks for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from calabash.model.allocation import UsageRecord


class RunningUsage(Protocol):
    """The use of running allocations since their last usage record."""

    def records(self) -> tuple[Sequence[UsageRecord], float]:
        """Return it as records that are not in the store, and the moment up to which usage is counted with them."""
        ...

    def write(self) -> tuple[float, Mapping[str, float]]:
        """Write what can be written. Return the moment up to which all usage is in the store, and the tenants of which it is
        there only up to an earlier one. Raises CalabashError."""
        ...
