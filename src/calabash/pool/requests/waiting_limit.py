"""Limits of waiting requests per user and per tenant, and the locks with which the number of slices per user is checked."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from calabash.model.errors import CalabashError, Reason


class WaitingLimit:
    """Limit of waiting requests per user or per tenant. Safe for threads.

    Args:
        most: greatest number of waiting requests.
        what: ``user`` or ``tenant``, for messages.
        setting: setting in pool.toml that an administrator may raise, for messages.
    """

    def __init__(self, most: int, *, what: str = "user", setting: str = "waiting") -> None:
        self._most = most
        self._what = what
        self._setting = setting
        self._lock = threading.Lock()
        self._waiting: Counter[str] = Counter()

    def join(self, whose: str, *, exempt: bool) -> None:
        """Count a waiting request of user or tenant ``whose``. Raises USER_LIMIT beyond the limit unless ``exempt``."""
        with self._lock:
            if self._waiting[whose] >= self._most and not exempt:
                raise CalabashError(
                    f"{self._waiting[whose]} requests of {self._what} {whose} wait already, the limit",
                    reason=Reason.USER_LIMIT,
                    hint=f"wait until some have started; an administrator may raise `{self._setting}` in pool.toml",
                )
            self._waiting[whose] += 1

    def leave(self, whose: str) -> None:
        """Count one waiting request of the user or tenant ``whose`` less."""
        with self._lock:
            self._waiting[whose] -= 1
            if self._waiting[whose] <= 0:
                del self._waiting[whose]


class UserLocks:
    """One lock for each tenant and user.

    The limit of slices per user is checked and the request is queued under the lock. So two concurrent requests of a
    user, each of which is within the limit, cannot exceed it together.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._locks: dict[tuple[str, str], tuple[threading.Lock, int]] = {}

    @contextmanager
    def locked(self, tenant: str, user: str) -> Iterator[None]:
        """Hold the lock of this tenant and user."""
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
