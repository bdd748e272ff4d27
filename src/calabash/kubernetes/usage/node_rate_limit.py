"""Rate limit per node of the usage collection, as a token bucket, so that one node cannot delay the others."""

from __future__ import annotations

import time
from collections.abc import Callable

from calabash.model.errors import CalabashError, Reason

MOST = 250_000.0  # records; slightly more than the limit of waiting records on a node
PER_S = 20.0
POD_COST = 50.0  # cost of reading a pod from the API server


class NodeAllowances:
    """Token buckets of all nodes. Used by one thread at a time."""

    def __init__(self, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._left: dict[str, tuple[float, float]] = {}  # balance, and the time at which it was computed

    def require(self, node: str) -> None:
        """Raise CalabashError(CONFLICT) for a node whose bucket is empty."""
        left, _ = self._now(node)
        if left < 1:
            raise CalabashError(
                f"node {node} sends more than {PER_S:g} intervals a second, and has used up {MOST:g} beyond that",
                reason=Reason.CONFLICT,
                hint="it may go on in a minute; see what runs on that node",
            )

    def took(self, node: str, cost: float) -> None:
        """Subtract the cost of a request; the balance may become negative."""
        left, now_s = self._now(node)
        self._left[node] = left - cost, now_s

    def _now(self, node: str) -> tuple[float, float]:
        now_s = self._now_s()
        left, at_s = self._left.get(node, (MOST, now_s))
        return min(MOST, left + (now_s - at_s) * PER_S), now_s
