"""Pods that are set aside for a while because their last plan could not be used.

Theory of operation. A plan that the API server refuses to store, or that kube-scheduler does not use, is given back, and its
pod stands in no queue for a while: its devices go to others. Each further time the pod waits twice as long, up to a limit.
The wait ends early where there is reason to expect another result: the pod was changed, or kube-scheduler found nodes for it
that have everything but devices. A pod that is bound or gone begins anew.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

FACTOR = 2.0
CHANGE_S = 1.0  # the first wait of a pod that was changed
CHANGE_MAX_S = 60.0


class EarlyEnd(StrEnum):
    """Event that ends a wait early."""

    NEVER = "never"
    CHANGED = "changed"
    ASKED = "asked"


@dataclass(slots=True)
class _Deferral:
    times: int = 0
    early: EarlyEnd = EarlyEnd.NEVER
    since_s: float = 0.0
    until_s: float = -math.inf
    asked: bool = False  # the last wait was ended by a question of kube-scheduler


class Deferrals:
    """See the module's description."""

    def __init__(self) -> None:
        self._by_uid: dict[str, _Deferral] = {}
        self._waiting: dict[str, None] = {}

    def defer(self, uid: str, now_s: float, *, first_s: float, max_s: float, early: EarlyEnd) -> float:
        """Set a pod aside; returns for how long at most.

        Args:
            first_s, max_s: the wait of the first time, and the longest.
            early: what ends the wait early.
        """
        found = self._by_uid.setdefault(uid, _Deferral())
        delay_s = min(first_s * FACTOR ** min(found.times, 30), max_s)
        found.times += 1
        found.early = early
        found.asked = False
        found.since_s, found.until_s = now_s, now_s + delay_s
        self._waiting[uid] = None
        return delay_s

    def waits(self, uid: str) -> bool:
        """Return True while the pod is set aside."""
        return uid in self._waiting

    def was_asked(self, uid: str) -> bool:
        """Return True if kube-scheduler's question ended the pod's last wait."""
        found = self._by_uid.get(uid)
        return found is not None and found.asked

    def changed(self, uid: str) -> None:
        """The pod was changed: end its wait, though no sooner than after a second, and each time after twice as long."""
        found = self._by_uid.get(uid)
        if found is not None and found.early is EarlyEnd.CHANGED:
            soonest_s = min(CHANGE_S * FACTOR ** min(found.times - 1, 30), CHANGE_MAX_S)
            found.until_s = min(found.until_s, found.since_s + soonest_s)

    def asked(self, uid: str) -> None:
        """kube-scheduler asked where the pod may go: end its wait."""
        found = self._by_uid.get(uid)
        if found is not None and uid in self._waiting and found.early is EarlyEnd.ASKED:
            found.until_s, found.asked = -math.inf, True

    def due(self, now_s: float) -> Iterator[str]:
        """End the waits that are over, and yield their pods."""
        for uid in [uid for uid in self._waiting if self._by_uid[uid].until_s <= now_s]:
            del self._waiting[uid]
            yield uid

    def forget(self, uid: str) -> None:
        """The pod is bound, or is gone."""
        self._by_uid.pop(uid, None)
        self._waiting.pop(uid, None)
