"""Queue of pods that are retried in turn."""

from __future__ import annotations

from collections.abc import Iterator


class RetryQueue:
    """UIDs of pods that are tried again, the least recently tried first.

    Attributes:
        has_new: a pod was added since the last ``take_round``.
    """

    def __init__(self) -> None:
        self._uids: dict[str, None] = {}
        self.has_new = False

    def __contains__(self, uid: str) -> bool:
        return uid in self._uids

    def __len__(self) -> int:
        return len(self._uids)

    def uids(self) -> set[str]:
        """Return the UIDs of all pods in the queue."""
        return set(self._uids)

    def put(self, uid: str) -> None:
        """Add a pod. A pod that is in the queue keeps its place."""
        self._uids[uid] = None
        self.has_new = True

    def remove(self, uid: str) -> None:
        """Remove a pod. Does nothing if it is not in the queue."""
        self._uids.pop(uid, None)

    def take_round(self, count: int) -> Iterator[str]:
        """Yield the first ``count`` pods; each is moved to the end of the queue before it is yielded."""
        self.has_new = False
        for uid in list(self._uids)[:count]:
            if uid in self._uids:
                del self._uids[uid]
                self._uids[uid] = None
                yield uid
