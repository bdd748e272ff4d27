"""Change feed: clients wait for changes of the pool's objects.

Theory of operation. The pool is polled only while a client waits, every ``POLL_S`` seconds and once for all clients. Each
object has a mark, a value that represents its state: if the mark differs from that of the previous poll, the object has
changed. Changes have consecutive numbers, and the last ``KEPT_MAX`` changes are in memory. The first number is the time of the
pool's start in milliseconds, so a number that a client got from an earlier process of the pool is recognised as too small.
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

POLL_S = 0.5
KEPT_MAX = 4096
REPLY_MAX = 500  # changes in one reply

Key = tuple[str, str]  # kind, name


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """State of an object, in the form in which two polls are compared, and the owner of the object.

    Args:
        mark: value that represents the state; it is compared with that of the previous poll.
        tenant: tenant of the object; "" if it belongs to none.
        uid: uid of the user who requested the object; negative if the user has no account.
        user: name of this user.
    """

    mark: object
    tenant: str = ""
    uid: int = -1
    user: str = ""


ReadTraces = Callable[[], Mapping[Key, Trace]]
Visible = Callable[[str, Trace], bool]


class ChangeFeed:
    """Change feed of one pool, for one event loop.

    Args:
        read: returns the traces of all present objects; called in a worker thread.
        first: number of the first change; 0: the present time in milliseconds.
    """

    def __init__(self, read: ReadTraces, *, first: int = 0, clock: Callable[[], float] = time.monotonic) -> None:
        self._read = read
        self._clock = clock
        self._first = first or int(time.time() * 1000)
        self._numbers = itertools.count(self._first + 1)
        self._last = self._first
        self._known: Mapping[Key, Trace] | None = None
        self._polled_s = float("-inf")
        self._kept: deque[tuple[ChangeView, Trace]] = deque(maxlen=KEPT_MAX)
        self._polling = asyncio.Lock()

    async def after(self, number: int, *, wait_s: float, visible: Visible) -> ChangeList:
        """Return the visible changes after a number; wait up to ``wait_s`` seconds if there are none.

        The reply has ``reset`` set if changes after the number are not in memory any more: the client must read all objects.

        Args:
            number: number of the last change that the client knows; -1 to get the present number at once.
            visible: returns True if the client may read changes of this kind and trace.
        """
        await self._refresh()
        if number < 0:
            return ChangeList(items=[], next=self._last, reset=False)
        deadline_s = self._clock() + wait_s
        while True:
            if not self._oldest() - 1 <= number <= self._last:
                return ChangeList(items=[], next=self._last, reset=True)
            fresh = [(view, trace) for view, trace in self._kept if view.id > number][:REPLY_MAX]
            found = [view for view, trace in fresh if visible(view.kind, trace)]
            number = fresh[-1][0].id if fresh else number
            left_s = deadline_s - self._clock()
            if found or left_s <= 0:
                return ChangeList(items=found, next=number, reset=False)
            await asyncio.sleep(min(POLL_S, left_s))
            await self._refresh()

    def _oldest(self) -> int:
        return self._kept[0][0].id if self._kept else self._last + 1

    async def _refresh(self) -> None:
        """Poll the pool unless it was polled within POLL_S seconds."""
        async with self._polling:
            if self._clock() - self._polled_s < POLL_S:
                return
            now = await asyncio.to_thread(self._read)
            self._polled_s = self._clock()
            before, self._known = self._known, now
            if before is not None:
                self._compare(before, now)

    def _compare(self, before: Mapping[Key, Trace], now: Mapping[Key, Trace]) -> None:
        for key, trace in now.items():
            old = before.get(key)
            if old is None or old.mark != trace.mark:
                self._append(key, trace, added=old is None)
        for key, trace in before.items():
            if key not in now:
                self._append(key, trace, added=None)

    def _append(self, key: Key, trace: Trace, *, added: bool | None) -> None:
        self._last = next(self._numbers)
        change: Literal["added", "changed", "removed"] = "added" if added else "changed"
        change = "removed" if added is None else change
        self._kept.append((ChangeView(id=self._last, kind=key[0], name=key[1], change=change), trace))
