"""What changed in the pool, told to whoever waits for it.

Theory of operation. Nothing is looked at while nobody asks. As long as somebody does, the pool is looked at every ``LOOK_S``
once for all of them: each thing has a mark, and where the mark is another one than before, that is a change. The last
``KEPT_MAX`` changes have consecutive numbers, which begin with the time of the start, so a number of an earlier pool is known
as such.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from calabash.api.changes import ChangeList, ChangeView

LOOK_S = 0.5
KEPT_MAX = 4096
TOLD_MAX = 500

Key = tuple[str, str]  # kind, name


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """What is compared of a thing, and whose it is."""

    mark: object
    tenant: str = ""
    uid: int = -1
    user: str = ""


Look = Callable[[], Mapping[Key, Trace]]
Visible = Callable[[str, Trace], bool]


class PoolChanges:
    """The changes of one pool, for one event loop.

    Args:
        look: all there is now; called in a worker thread.
        first: the number of the first change.
    """

    def __init__(self, look: Look, *, first: int = 0, clock: Callable[[], float] = time.monotonic) -> None:
        self._look = look
        self._clock = clock
        self._first = first or int(time.time() * 1000)
        self._numbers = itertools.count(self._first + 1)
        self._last = self._first
        self._known: Mapping[Key, Trace] | None = None
        self._looked_s = float("-inf")
        self._kept: deque[tuple[ChangeView, Trace]] = deque(maxlen=KEPT_MAX)
        self._looking = asyncio.Lock()

    async def after(self, number: int, *, wait_s: float, visible: Visible) -> ChangeList:
        """What changed after that number and may be seen, at once or when there is something; -1 begins now."""
        await self._refresh()
        if number < 0:
            return ChangeList(items=[], next=self._last, reset=False)
        deadline_s = self._clock() + wait_s
        while True:
            if not self._oldest() - 1 <= number <= self._last:
                return ChangeList(items=[], next=self._last, reset=True)
            fresh = [(view, trace) for view, trace in self._kept if view.id > number][:TOLD_MAX]
            found = [view for view, trace in fresh if visible(view.kind, trace)]
            number = fresh[-1][0].id if fresh else number
            left_s = deadline_s - self._clock()
            if found or left_s <= 0:
                return ChangeList(items=found, next=number, reset=False)
            await asyncio.sleep(min(LOOK_S, left_s))
            await self._refresh()

    def _oldest(self) -> int:
        return self._kept[0][0].id if self._kept else self._last + 1

    async def _refresh(self) -> None:
        """Look, unless somebody has just done so."""
        async with self._looking:
            if self._clock() - self._looked_s < LOOK_S:
                return
            now = await asyncio.to_thread(self._look)
            self._looked_s = self._clock()
            before, self._known = self._known, now
            if before is not None:
                self._compare(before, now)

    def _compare(self, before: Mapping[Key, Trace], now: Mapping[Key, Trace]) -> None:
        for key, trace in now.items():
            old = before.get(key)
            if old is None or old.mark != trace.mark:
                self._keep(key, trace, added=old is None)
        for key, trace in before.items():
            if key not in now:
                self._keep(key, trace, added=None)

    def _keep(self, key: Key, trace: Trace, *, added: bool | None) -> None:
        self._last = next(self._numbers)
        change: Literal["added", "changed", "removed"] = "added" if added else "changed"
        change = "removed" if added is None else change
        self._kept.append((ChangeView(id=self._last, kind=key[0], name=key[1], change=change), trace))
