"""Small things that stand in for parts that a test is not about."""

from __future__ import annotations

from calabash.model.allocation import AllocationRecord
from calabash.model.request import AllocationId


class NothingListed:
    """Devices that list nothing of anybody."""

    def clear(self, record: AllocationRecord) -> bool:
        del record
        return True

    def forget(self, allocation: AllocationId) -> None:
        """There is nothing to forget."""
