"""Per-user rate limit of work on the event loop.

Theory of operation. A thousand connections of one user that open or close at the same moment would delay all other users. So at
most ``AT_ONCE`` pieces of work of each user begin per ``PERIOD_S`` seconds; the rest waits in a queue of that user. Work of a
user without a queue begins at once.

Requests that only read have a queue of their own for each user, which is served first, so that a user who sends many requests
can still query their state. One piece of work per period is reserved for the user's other requests. Opening or closing a
connection costs a tenth of a request, so ``CONNECTIONS_AT_ONCE`` of these begin per period.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Hashable

AT_ONCE = 3
CONNECTIONS_AT_ONCE = 16
PERIOD_S = 0.005


class _UserQueue:
    """Waiting work of one user."""

    def __init__(self) -> None:
        self._reads: deque[Callable[[], None]] = deque()
        self._others: deque[Callable[[], None]] = deque()

    def __len__(self) -> int:
        return len(self._reads) + len(self._others)

    def add(self, work: Callable[[], None], *, reads: bool) -> None:
        (self._reads if reads else self._others).append(work)

    def take(self, most: int) -> list[Callable[[], None]]:
        """Remove and return up to ``most`` pieces of work.

        Reads come first. The last piece is other work if any waits, so that reads cannot block other work for ever.
        """
        found: list[Callable[[], None]] = []
        while self and len(found) < most:
            others_first = not self._reads or (bool(self._others) and len(found) == most - 1)
            found.append((self._others if others_first else self._reads).popleft())
        return found


class PerUserPacer:
    """Per-user rate limit of one kind of work; not safe for threads.

    Args:
        at_once: pieces of work of one user that begin per period.
        period_s: length of a period in seconds.
    """

    def __init__(self, *, at_once: int = AT_ONCE, period_s: float = PERIOD_S) -> None:
        self._at_once = at_once
        self._period_s = period_s
        self._begun: Counter[Hashable] = Counter()  # in this period
        self._lines: dict[Hashable, _UserQueue] = {}
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, uid: Hashable, work: Callable[[], None], *, reads: bool = False) -> None:
        """Call ``work`` now, or in a later period if the user has reached its limit.

        Args:
            reads: the work only reads, and precedes other work of the same user.
        """
        if uid in self._lines or self._begun[uid] >= self._at_once:
            self._lines.setdefault(uid, _UserQueue()).add(work, reads=reads)
            return
        self._begun[uid] += 1
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._period_s, self._next_period)
        work()

    async def wait(self, uid: Hashable, *, reads: bool = False) -> None:
        """Wait until the next piece of work of this user may begin; ``reads`` as for ``begin``."""
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
            works = line.take(self._at_once)
            self._begun[uid] += len(works)
            for work in works:
                work()
            if not line:
                del self._lines[uid]
