"""Counts of this process's requests, lists and watches to the API server.

They are kept for the whole process, because a program has several clients and mirrors, and metrics cover all of them.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable


class KubeCounts:
    """Counters of requests, lists and watches, and the silence of each mirror. Safe for threads.

    A mirror is a cache of all objects of a kind. Its silence is the time since the API server last sent anything to it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: Counter[tuple[str, int]] = Counter()
        self._lists: Counter[str] = Counter()
        self._watches: Counter[str] = Counter()
        self._silent: dict[object, tuple[str, Callable[[], float]]] = {}

    def request(self, method: str, status: int) -> None:
        """Count a request by the status of its answer; 0 if there was none."""
        with self._lock:
            self._requests[method, status] += 1

    def listed(self, plural: str) -> None:
        """Count a complete list of a kind, given by its plural."""
        with self._lock:
            self._lists[plural] += 1

    def watched(self, plural: str) -> None:
        """Count a watch of a kind that begins; ``plural`` is the plural of the kind."""
        with self._lock:
            self._watches[plural] += 1

    def begin(self, mirror: object, plural: str, silent_s: Callable[[], float]) -> None:
        """Add a mirror; ``silent_s`` returns for how long the API server has sent nothing to it."""
        with self._lock:
            self._silent[mirror] = (plural, silent_s)

    def end(self, mirror: object) -> None:
        """Remove a stopped mirror."""
        with self._lock:
            self._silent.pop(mirror, None)

    def requests(self) -> dict[tuple[str, int], int]:
        """Return the number of requests by method and status."""
        with self._lock:
            return dict(self._requests)

    def lists(self) -> dict[str, int]:
        """Return the number of complete lists by the plural of the kind."""
        with self._lock:
            return dict(self._lists)

    def watches(self) -> dict[str, int]:
        """Return the number of watches that were begun, by the plural of the kind."""
        with self._lock:
            return dict(self._watches)

    def silent_s(self) -> dict[str, float]:
        """Return the longest silence of the mirrors of each kind, in seconds."""
        with self._lock:
            mirrors = list(self._silent.values())
        longest: dict[str, float] = {}
        for plural, silent_s in mirrors:
            longest[plural] = max(longest.get(plural, 0.0), silent_s())
        return longest


KUBE_COUNTS = KubeCounts()
