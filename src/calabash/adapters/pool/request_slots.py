"""Slots for unanswered requests to the pool, divided between their holders.

A holder gets a slot only while it has fewer than ``share`` and fewer than are free. One holder therefore gets at most
its share, and several holders leave slots for the next one, which gets about as many as are still free (dynamic
thresholds, as for the buffers of switches). A request beyond that is refused at once. Only a request without a holder,
or the first one of a holder, waits for a slot.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from calabash.model.errors import CalabashError, Reason


class Places:
    """Slots for requests; used by one event loop.

    Args:
        most: number of slots.
        share: largest number of slots of one holder.
    """

    def __init__(self, most: int, share: int) -> None:
        self._room = asyncio.Semaphore(most)
        self._free = most  # below zero while requests wait
        self._share = share
        self._held: Counter[str] = Counter()

    @asynccontextmanager
    async def place(self, holder: str = "") -> AsyncIterator[None]:
        """Hold a slot. Raises CalabashError(USER_LIMIT) if the holder may have no more."""
        held = self._held[holder] if holder else 0
        allowed = min(self._share, max(self._free, 1))
        if holder and held >= allowed:
            raise CalabashError(
                f"{held} requests of this credential are not answered yet, and it may have {allowed} at a time now",
                reason=Reason.USER_LIMIT,
                hint="wait until some are answered, or end them by closing their connections",
            )
        self._free -= 1
        self._held[holder] += 1
        try:
            async with self._room:
                yield
        finally:
            self._free += 1
            self._held[holder] -= 1
            if not self._held[holder]:
                del self._held[holder]
