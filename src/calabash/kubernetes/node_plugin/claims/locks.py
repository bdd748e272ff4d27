"""Locks per claim for threads that prepare, unprepare or reconcile it.

Reconciling a claim asks the API server first, which can take long. Other threads may work on the claim meanwhile, and then
the answer is stale. So the reconciler learns whether another thread worked on the claim since it began, and does not wait for
one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class _Turn:
    lock: threading.Lock = field(default_factory=threading.Lock)
    count: int = 0  # number of times that the lock was taken
    there: int = 0  # number of threads that hold it, wait for it, or observe it


class ClaimTurns:
    """The locks of all claims of a node, by UID. Methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._turns: dict[str, _Turn] = {}

    @contextmanager
    def work(self, uid: str) -> Iterator[None]:
        """Hold the lock of a claim; waits for other threads."""
        with self._of(uid) as turn, turn.lock:
            turn.count += 1
            yield

    @contextmanager
    def look(self, uid: str) -> Iterator[Callable[[], AbstractContextManager[bool]]]:
        """Yield a function that tries to lock the claim without waiting.

        Its context manager yields False, without the lock, if another thread works on the claim or has worked on it since
        ``look`` was called.
        """
        with self._of(uid) as turn:
            before = turn.count
            yield lambda: _untouched(turn, before)

    @contextmanager
    def _of(self, uid: str) -> Iterator[_Turn]:
        with self._lock:
            turn = self._turns.setdefault(uid, _Turn())
            turn.there += 1
        try:
            yield turn
        finally:
            with self._lock:
                turn.there -= 1
                if not turn.there:
                    del self._turns[uid]


@contextmanager
def _untouched(turn: _Turn, before: int) -> Iterator[bool]:
    if not turn.lock.acquire(blocking=False):
        yield False
        return
    try:
        yield turn.count == before
    finally:
        turn.lock.release()
