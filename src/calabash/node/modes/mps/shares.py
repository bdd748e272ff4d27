"""Shares of the allocations of an MPS service, and the share that its server gives to the next client."""

from __future__ import annotations

from dataclasses import dataclass

from calabash.model.request import AllocationId


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Compute and memory that one allocation may use."""

    percent: int
    memory_mib: int


class Shares:
    """The shares of one service. ``hold`` and ``leave`` may be called from any thread at any time."""

    def __init__(self) -> None:
        self._held: dict[AllocationId, Share] = {}
        self.window: Share | None = None  # share of the program that is being admitted

    @property
    def idle(self) -> bool:
        """True if no allocation holds a share."""
        return not self._held

    def hold(self, allocation: AllocationId, share: Share) -> None:
        """Set the share of an allocation."""
        self._held[allocation] = share

    def leave(self, allocation: AllocationId) -> None:
        """Remove the share of an allocation."""
        self._held.pop(allocation, None)

    def share_of(self, allocation: AllocationId) -> Share | None:
        """Return the share of an allocation; None if it has none."""
        return self._held.get(allocation)

    def wanted(self) -> Share:
        """Return the share that the server should give now: that of the program being admitted, otherwise the smallest."""
        if self.window is not None:
            return self.window
        shares = list(self._held.values()) or [Share(percent=1, memory_mib=1)]
        return Share(percent=min(s.percent for s in shares), memory_mib=min(s.memory_mib for s in shares))
