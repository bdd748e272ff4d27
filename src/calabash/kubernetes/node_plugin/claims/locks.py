"""One at a time for each claim: whoever prepares it, gives it back, or looks after it.

Who looks after a claim asks the API server first, which takes its time; meanwhile others may work on the claim, and then
what was heard is of the past. So a look says whether anybody came since it began, and nobody waits for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class _Turn:
    lock: threading.Lock = field(default_factory=threading.Lock)
    count: int = 0  # how many had it
    there: int = 0  # how many have it, wait for it, or look


class ClaimTurns:
    """The turns of all claims of a node, by UID; from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._turns: dict[str, _Turn] = {}

    @contextmanager
    def work(self, uid: str) -> Iterator[None]:
        """Nobody else works on the claim meanwhile; whoever does is waited for."""
        with self._of(uid) as turn, turn.lock:
            turn.count += 1
            yield

    @contextmanager
    def look(self, uid: str) -> Iterator[Callable[[], AbstractContextManager[bool]]]:
        """Gives what takes the turn once the look is done: False, and no turn, where somebody worked on it since it began."""
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
