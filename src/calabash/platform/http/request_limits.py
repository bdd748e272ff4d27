"""One user's part of the API: connections, requests per second, work at a time, replies that nobody reads.

Theory of operation. One thread serves everybody, so what a user costs is bounded before it is worked on. Connections
beyond the bound are closed when they are accepted. Requests beyond the rate are not refused but begin later (a token
bucket per user: who comes too fast waits for its own tokens only). At most ``WORK_AT_ONCE`` calls of one user that read,
and as many that do not, are in the worker threads at a time, so that a question does not wait for a crowd of requests; and
at most ``REPLIES_AT_ONCE`` replies of one user lie in buffers; a reply that is not read within ``REPLY_S`` ends its
connection. Administrators are not slowed down, but their connections are counted too.
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
LOOK_S = 2.0  # how often it is found that who waits for a token has hung up
USERS_REMEMBERED = 1000


@dataclass(slots=True)
class _User:
    """What one user has now."""

    tokens: float
    at_s: float
    connections: int = 0
    work: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(WORK_AT_ONCE))
    reads: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(WORK_AT_ONCE))
    replies: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(REPLIES_AT_ONCE))


class Fairness:
    """The bounds at work; used by the serving thread alone.

    Args:
        exempt: whose requests are never slowed down.
    """

    def __init__(
        self, limits: Limits, *, exempt: Callable[[int], bool], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limits = limits
        self._exempt = exempt
        self._clock = clock
        self._users: dict[int | str, _User] = {}

    def connect(self, uid: int) -> bool:
        """One more connection; False when it is one too many."""
        user = self._user(uid)
        if user.connections >= self._limits.connections:
            return False
        user.connections += 1
        return True

    def disconnect(self, uid: int) -> None:
        """One connection less."""
        self._user(uid).connections -= 1
        if len(self._users) > USERS_REMEMBERED:
            idle = [uid for uid, user in self._users.items() if not user.connections]
            for gone in idle:
                del self._users[gone]

    async def admit(self, uid: int, *, gone: Callable[[], bool]) -> bool:
        """Return when the user's next request may begin; False when nobody waits for it any more.

        Args:
            gone: whether who asked has hung up; its token is the user's again.
        """
        delay_s = self.delay_s(uid)
        while delay_s > 0 and not gone():
            await asyncio.sleep(min(delay_s, LOOK_S))
            delay_s -= LOOK_S
        if not gone():
            return True
        self._user(uid).tokens += 1.0
        return False

    def delay_s(self, uid: int) -> float:
        """Take a token; how long until it is there."""
        if self._exempt(uid):
            return 0.0
        user, now_s = self._user(uid), self._clock()
        rate = self._limits.requests_per_second
        user.tokens = min(float(self._limits.requests_at_once), user.tokens + (now_s - user.at_s) * rate) - 1.0
        user.at_s = now_s
        return max(0.0, -user.tokens / rate)

    @asynccontextmanager
    async def work(self, uid: int | str, *, reads: bool = False) -> AsyncIterator[None]:
        """Room for one call in the worker threads.

        Args:
            reads: the call changes nothing.
        """
        user = self._user(uid)
        async with user.reads if reads else user.work:
            yield

    @asynccontextmanager
    async def reply(self, uid: int | str) -> AsyncIterator[None]:
        """Room for one reply in the buffers."""
        async with self._user(uid).replies:
            yield

    def _user(self, uid: int | str) -> _User:
        user = self._users.get(uid)
        if user is None:
            user = self._users[uid] = _User(tokens=float(self._limits.requests_at_once), at_s=self._clock())
        return user
