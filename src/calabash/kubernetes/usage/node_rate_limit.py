"""What one node may cost the collection: a bucket that fills slowly, so that nobody waits for a node that floods it."""

from __future__ import annotations

import time
from collections.abc import Callable

from calabash.model.errors import CalabashError, Reason

MOST = 250_000.0  # intervals: as many as wait on a node at most, and some
PER_S = 20.0
POD_COST = 50.0  # of asking the API server about a pod


class NodeAllowances:
    """One bucket for each node. Asked by one thread at a time; nodes are those of a cluster, so there are not many."""

    def __init__(self, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._left: dict[str, tuple[float, float]] = {}  # so much, at that time

    def require(self, node: str) -> None:
        """Raises CalabashError(CONFLICT) for a node that has nothing left."""
        left, _ = self._now(node)
        if left < 1:
            raise CalabashError(
                f"node {node} sends more than {PER_S:g} intervals a second, and has used up {MOST:g} beyond that",
                reason=Reason.CONFLICT,
                hint="it may go on in a minute; see what runs on that node",
            )

    def took(self, node: str, cost: float) -> None:
        """It was served; a debt is waited off."""
        left, now_s = self._now(node)
        self._left[node] = left - cost, now_s

    def _now(self, node: str) -> tuple[float, float]:
        now_s = self._now_s()
        left, at_s = self._left.get(node, (MOST, now_s))
        return min(MOST, left + (now_s - at_s) * PER_S), now_s
