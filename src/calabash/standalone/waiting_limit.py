"""How many requests of each user wait."""

from __future__ import annotations

import threading
from collections import Counter

from calabash.model.errors import CalabashError, Reason
from calabash.seams.host.processes import user_name


class WaitingLimit:
    """At most so many of one user at a time. Safe for threads."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._waiting: Counter[int] = Counter()

    def join(self, uid: int, *, exempt: bool) -> None:
        """One more. Raises USER_LIMIT when it is one too many, unless ``exempt``."""
        with self._lock:
            if self._waiting[uid] >= self._most and not exempt:
                raise CalabashError(
                    f"{self._waiting[uid]} requests of user {user_name(uid)} wait already, the limit",
                    reason=Reason.USER_LIMIT,
                    hint="wait until some have started; an administrator may raise `waiting` in pool.toml",
                )
            self._waiting[uid] += 1

    def leave(self, uid: int) -> None:
        """One less."""
        with self._lock:
            self._waiting[uid] -= 1
            if self._waiting[uid] <= 0:
                del self._waiting[uid]
