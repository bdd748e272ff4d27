"""Whose turn it is on the one thread that serves everybody.

Theory of operation. A thousand connections of one user that open or hang up in the same moment would all be worked on
before anybody else's next step. So of each user at most ``AT_ONCE`` pieces of work begin per ``PERIOD_S``; the others wait
in a line of that user alone. Whoever has nothing waiting begins at once.

A user who sends a crowd of requests asks meanwhile how things stand. What only reads therefore has a line of its own, which
goes first in all but one place of each period. Opening and closing a connection costs a tenth of a request, so
``CONNECTIONS_AT_ONCE`` of these begin per period: a question on a new connection does not wait long for those of the crowd.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Hashable

AT_ONCE = 3
CONNECTIONS_AT_ONCE = 16
PERIOD_S = 0.005


class _Line:
    """Waiting work of one user."""

    def __init__(self) -> None:
        self._reads: deque[Callable[[], None]] = deque()
        self._others: deque[Callable[[], None]] = deque()

    def __len__(self) -> int:
        return len(self._reads) + len(self._others)

    def add(self, work: Callable[[], None], *, reads: bool) -> None:
        (self._reads if reads else self._others).append(work)

    def next(self, most: int) -> list[Callable[[], None]]:
        """Take what begins now: reads first, but one of the others at least."""
        found: list[Callable[[], None]] = []
        while self and len(found) < most:
            others_first = not self._reads or (bool(self._others) and len(found) == most - 1)
            found.append((self._others if others_first else self._reads).popleft())
        return found


class Turns:
    """Used by the serving thread alone."""

    def __init__(self, *, at_once: int = AT_ONCE, period_s: float = PERIOD_S) -> None:
        self._at_once = at_once
        self._period_s = period_s
        self._begun: Counter[Hashable] = Counter()  # in this period
        self._lines: dict[Hashable, _Line] = {}
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, uid: Hashable, work: Callable[[], None], *, reads: bool = False) -> None:
        """Do it now, or when it is that user's turn again.

        Args:
            reads: the work changes nothing, and goes before work of the same user that does.
        """
        if uid in self._lines or self._begun[uid] >= self._at_once:
            self._lines.setdefault(uid, _Line()).add(work, reads=reads)
            return
        self._begun[uid] += 1
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._period_s, self._next_period)
        work()

    async def turn(self, uid: Hashable, *, reads: bool = False) -> None:
        """Return when it is that user's turn."""
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.begin(uid, lambda: None if mine.done() else mine.set_result(None), reads=reads)
        await mine

    def _next_period(self) -> None:
        self._timer = None
        self._begun.clear()
        if not self._lines:
            return
        self._timer = asyncio.get_running_loop().call_later(self._period_s, self._next_period)
        for uid, line in list(self._lines.items()):
            works = line.next(self._at_once)
            self._begun[uid] += len(works)
            for work in works:
                work()
            if not line:
                del self._lines[uid]
