"""Request limits per user: connections, requests per second, concurrent calls, and replies that the client has not read yet.

Theory of operation. One thread serves all users, so the cost of a user is limited before its requests are processed.
Connections beyond the limit are closed when they are accepted. Requests beyond the rate are delayed, not refused: each user has
a token bucket. At most ``WORK_AT_ONCE`` calls of one user that read, and as many that do not, are in the worker threads at a
time. At most ``REPLIES_AT_ONCE`` replies of one user are in send buffers; a connection whose reply is not read within
``REPLY_S`` seconds is closed. Requests of administrators are not delayed, but their connections are counted too.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from calabash.platform.home.limits import Limits

WORK_AT_ONCE = 2
REPLIES_AT_ONCE = 8
REPLY_S = 10.0
HANGUP_CHECK_S = 2.0  # interval at which a delayed request is checked for a closed connection
USERS_REMEMBERED = 1000


@dataclass(slots=True)
class _User:
    """Present use of the limits by one user.

    Args:
        tokens: tokens in the user's bucket at time ``at_s``; negative if requests wait for tokens.
        at_s: monotonic time in seconds.
        connections: open connections.
        work: semaphore of running calls that do not only read.
        reads: semaphore of running calls that only read.
        replies: semaphore of replies in send buffers.
    """

    tokens: float
    at_s: float
    connections: int = 0
    work: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(WORK_AT_ONCE))
    reads: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(WORK_AT_ONCE))
    replies: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(REPLIES_AT_ONCE))


class UserRequestLimits:
    """Request limits of all users; used by the event loop's thread only.

    Args:
        exempt: returns True for the uid of a user whose requests are not delayed.
    """

    def __init__(
        self, limits: Limits, *, exempt: Callable[[int], bool], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limits = limits
        self._exempt = exempt
        self._clock = clock
        self._users: dict[int | str, _User] = {}

    def connect(self, uid: int) -> bool:
        """Count a new connection; return False if the user has reached its limit."""
        user = self._user(uid)
        if user.connections >= self._limits.connections:
            return False
        user.connections += 1
        return True

    def disconnect(self, uid: int) -> None:
        """Count a closed connection."""
        self._user(uid).connections -= 1
        if len(self._users) > USERS_REMEMBERED:
            idle = [uid for uid, user in self._users.items() if not user.connections]
            for one in idle:
                del self._users[one]

    async def admit(self, uid: int, *, hung_up: Callable[[], bool]) -> bool:
        """Wait until the user's next request may begin; return False if its connection was closed meanwhile.

        Args:
            hung_up: returns True if the connection was closed; the request's token is then returned to the bucket.
        """
        delay_s = self.delay_s(uid)
        while delay_s > 0 and not hung_up():
            await asyncio.sleep(min(delay_s, HANGUP_CHECK_S))
            delay_s -= HANGUP_CHECK_S
        if not hung_up():
            return True
        self._user(uid).tokens += 1.0
        return False

    def delay_s(self, uid: int) -> float:
        """Take a token from the user's bucket; return the seconds that the request must wait for it, else 0."""
        if self._exempt(uid):
            return 0.0
        user, now_s = self._user(uid), self._clock()
        rate = self._limits.requests_per_second
        user.tokens = min(float(self._limits.requests_at_once), user.tokens + (now_s - user.at_s) * rate) - 1.0
        user.at_s = now_s
        return max(0.0, -user.tokens / rate)

    @asynccontextmanager
    async def work(self, uid: int | str, *, reads: bool = False) -> AsyncIterator[None]:
        """Limit the user's calls in worker threads: wait until one more may run, and count it while the context lasts.

        Args:
            reads: the call only reads.
        """
        user = self._user(uid)
        async with user.reads if reads else user.work:
            yield

    @asynccontextmanager
    async def reply(self, uid: int | str) -> AsyncIterator[None]:
        """Limit the user's replies in send buffers: wait until one more may be made, and count it while the context lasts."""
        async with self._user(uid).replies:
            yield

    def _user(self, uid: int | str) -> _User:
        user = self._users.get(uid)
        if user is None:
            user = self._users[uid] = _User(tokens=float(self._limits.requests_at_once), at_s=self._clock())
        return user
