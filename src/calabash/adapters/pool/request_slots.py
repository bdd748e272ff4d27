"""Slots that limit the number of unanswered requests to the pool, divided between the holders of credentials.

A request gets a slot only if its holder has fewer than ``share`` slots, and fewer slots than are free. So one holder
gets at most ``share`` slots, and while several holders use slots, some stay free for the next one (dynamic thresholds,
as for the buffers of network switches). A request beyond that is refused at once. A request without a holder, or the
first one of a holder, waits for a slot instead of being refused.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from calabash.model.errors import CalabashError, Reason


class Places:
    """Slots that limit the number of unanswered requests; used by one event loop.

    Args:
        most: number of slots.
        share: largest number of slots that one holder of a credential may have.
    """

    def __init__(self, most: int, share: int) -> None:
        self._room = asyncio.Semaphore(most)
        self._free = most  # below zero while requests wait
        self._share = share
        self._held: Counter[str] = Counter()

    @asynccontextmanager
    async def place(self, holder: str = "") -> AsyncIterator[None]:
        """Context in which the caller holds a slot, for one request to the pool.

        Raises CalabashError(USER_LIMIT) if the holder has as many slots as it may have now.

        Args:
            holder: name of the credential whose share the slot counts against; "" for none.
        """
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
