"""Locks per claim for threads that prepare, unprepare or reconcile it.

The reconciler reads a claim from the API server, which can take long, and holds no lock meanwhile. If another thread
works on the claim in that time, the object that was read is outdated. ``observe`` tells the reconciler if that
happened, so that it ignores the object. The reconciler never waits for the other thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class _ClaimLock:
    lock: threading.Lock = field(default_factory=threading.Lock)
    count: int = 0  # number of times that the lock was taken
    there: int = 0  # number of threads that hold it, wait for it, or observe it
    ends: bool = False  # True while a thread holds it to unprepare the claim


class ClaimLocks:
    """The locks of all claims of a node, by UID. Methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._locks: dict[str, _ClaimLock] = {}

    @contextmanager
    def work(self, uid: str, *, ends: bool = False) -> Iterator[None]:
        """Hold the lock of a claim while it is prepared or unprepared; wait until no other thread holds it.

        Args:
            uid: UID of the claim.
            ends: True if the claim is unprepared.
        """
        with self._claim_lock(uid) as claim, claim.lock:
            claim.count += 1
            claim.ends = ends
            try:
                yield
            finally:
                claim.ends = False

    def any_ends(self) -> bool:
        """Return True if a thread holds the lock of a claim to unprepare it."""
        with self._lock:
            return any(claim.ends for claim in self._locks.values())

    @contextmanager
    def observe(self, uid: str) -> Iterator[Callable[[], AbstractContextManager[bool]]]:
        """Yield a function that tries to lock the claim without waiting.

        The function returns a context manager. If no other thread has worked on the claim since ``observe`` was called,
        the context manager holds the lock and yields True. Otherwise it yields False, and the caller must not change
        the claim.
        """
        with self._claim_lock(uid) as claim:
            before = claim.count
            yield lambda: _untouched(claim, before)

    @contextmanager
    def _claim_lock(self, uid: str) -> Iterator[_ClaimLock]:
        with self._lock:
            claim = self._locks.setdefault(uid, _ClaimLock())
            claim.there += 1
        try:
            yield claim
        finally:
            with self._lock:
                claim.there -= 1
                if not claim.there:
                    del self._locks[uid]


@contextmanager
def _untouched(claim: _ClaimLock, before: int) -> Iterator[bool]:
    if not claim.lock.acquire(blocking=False):
        yield False
        return
    try:
        yield claim.count == before
    finally:
        claim.lock.release()
