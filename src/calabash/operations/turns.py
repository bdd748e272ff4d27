"""Whose turn it is on the one thread that serves everybody.

Theory of operation. A thousand connections of one user that open or hang up in the same moment would all be worked on
before anybody else's next step. So of each user at most ``AT_ONCE`` pieces of work begin per ``PERIOD_S``; the others wait
in a line of that user alone. Whoever has nothing waiting begins at once.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Hashable

AT_ONCE = 3
PERIOD_S = 0.005


class Turns:
    """Used by the serving thread alone."""

    def __init__(self, *, at_once: int = AT_ONCE, period_s: float = PERIOD_S) -> None:
        self._at_once = at_once
        self._period_s = period_s
        self._begun: Counter[Hashable] = Counter()  # in this period
        self._lines: dict[Hashable, deque[Callable[[], None]]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, uid: Hashable, work: Callable[[], None]) -> None:
        """Do it now, or when it is that user's turn again."""
        if uid in self._lines or self._begun[uid] >= self._at_once:
            self._lines.setdefault(uid, deque()).append(work)
            return
        self._begun[uid] += 1
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._period_s, self._next_period)
        work()

    async def turn(self, uid: Hashable) -> None:
        """Return when it is that user's turn."""
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.begin(uid, lambda: None if mine.done() else mine.set_result(None))
        await mine

    def _next_period(self) -> None:
        self._timer = None
        self._begun.clear()
        if not self._lines:
            return
        self._timer = asyncio.get_running_loop().call_later(self._period_s, self._next_period)
        for uid, line in list(self._lines.items()):
            for _ in range(min(self._at_once, len(line))):
                self._begun[uid] += 1
                line.popleft()()
            if not line:
                del self._lines[uid]
