"""How many requests of each user and of each tenant wait, and how many slices a user of a tenant has."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from calabash.model.errors import CalabashError, Reason


class WaitingLimit:
    """At most so many at a time of one whom. Safe for threads.

    Args:
        what: whom they are counted of: ``user`` or ``tenant``. setting: what an administrator may raise.
    """

    def __init__(self, most: int, *, what: str = "user", setting: str = "waiting") -> None:
        self._most = most
        self._what = what
        self._setting = setting
        self._lock = threading.Lock()
        self._waiting: Counter[str] = Counter()

    def join(self, whose: str, *, exempt: bool) -> None:
        """One more. Raises USER_LIMIT when it is one too many, unless ``exempt``."""
        with self._lock:
            if self._waiting[whose] >= self._most and not exempt:
                raise CalabashError(
                    f"{self._waiting[whose]} requests of {self._what} {whose} wait already, the limit",
                    reason=Reason.USER_LIMIT,
                    hint=f"wait until some have started; an administrator may raise `{self._setting}` in pool.toml",
                )
            self._waiting[whose] += 1

    def leave(self, whose: str) -> None:
        """One less."""
        with self._lock:
            self._waiting[whose] -= 1
            if self._waiting[whose] <= 0:
                del self._waiting[whose]


class OneByOne:
    """Requests whose number is bounded are taken one after the other, so that two cannot be the last that fits."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._locks: dict[tuple[str, str], tuple[threading.Lock, int]] = {}

    @contextmanager
    def turn(self, tenant: str, user: str) -> Iterator[None]:
        """Nobody else of that user and tenant is in here."""
        key = (tenant, user)
        with self._lock:
            lock, count = self._locks.get(key, (threading.Lock(), 0))
            self._locks[key] = (lock, count + 1)
        try:
            with lock:
                yield
        finally:
            with self._lock:
                lock, count = self._locks.pop(key)
                if count > 1:
                    self._locks[key] = (lock, count - 1)
