"""What the allocations on a card in mode mps may have, and what its server is to give now."""

from __future__ import annotations

from dataclasses import dataclass

from calabash.model.request import AllocationId


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one allocation may have."""

    percent: int
    memory_mib: int


class Shares:
    """The shares of one card. ``hold`` and ``leave`` may be called from any thread at any time."""

    def __init__(self) -> None:
        self._held: dict[AllocationId, Share] = {}
        self.window: Share | None = None  # of whoever is being let in

    @property
    def idle(self) -> bool:
        """Whether nobody holds anything."""
        return not self._held

    def hold(self, allocation: AllocationId, share: Share) -> None:
        """From now on it may have this."""
        self._held[allocation] = share

    def leave(self, allocation: AllocationId) -> None:
        """It may have nothing any more."""
        self._held.pop(allocation, None)

    def of(self, allocation: AllocationId) -> Share | None:
        """What it may have; None: nothing."""
        return self._held.get(allocation)

    def wanted(self) -> Share:
        """What the server is to give now: to whoever is let in its own, else the least of all."""
        if self.window is not None:
            return self.window
        shares = list(self._held.values()) or [Share(percent=1, memory_mib=1)]
        return Share(percent=min(s.percent for s in shares), memory_mib=min(s.memory_mib for s in shares))
