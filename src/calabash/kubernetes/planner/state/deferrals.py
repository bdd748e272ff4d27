"""Deferrals of pods whose last plan could not be used.

Theory of operation. A plan that the API server refuses to store, or that kube-scheduler does not use, is withdrawn, and
its pod is in no queue for a while: its devices go to other pods. Each further deferral is twice as long, up to a limit.
It ends early if another result can be expected: the pod was changed, or kube-scheduler found nodes for it that have
everything but devices. A bound pod begins anew.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

FACTOR = 2.0
CHANGE_S = 1.0  # shortest deferral of a changed pod
CHANGE_MAX_S = 60.0


class EarlyEnd(StrEnum):
    """Event that ends a deferral early."""

    NEVER = "never"
    CHANGED = "changed"
    ASKED = "asked"


@dataclass(slots=True)
class _Deferral:
    times: int = 0
    early: EarlyEnd = EarlyEnd.NEVER
    since_s: float = 0.0
    until_s: float = -math.inf
    asked: bool = False  # kube-scheduler's question ended the last deferral


class Deferrals:
    """Deferred pods; see the module's description."""

    def __init__(self) -> None:
        self._by_uid: dict[str, _Deferral] = {}
        self._waiting: dict[str, None] = {}

    def defer(self, uid: str, now_s: float, *, first_s: float, max_s: float, early: EarlyEnd) -> float:
        """Defer a pod; return the longest time of this deferral in seconds.

        Args:
            first_s: the first deferral of a pod, in seconds.
            max_s: the longest.
            early: event that ends the deferral early.
        """
        found = self._by_uid.setdefault(uid, _Deferral())
        delay_s = min(first_s * FACTOR ** min(found.times, 30), max_s)
        found.times += 1
        found.early = early
        found.asked = False
        found.since_s, found.until_s = now_s, now_s + delay_s
        self._waiting[uid] = None
        return delay_s

    def is_deferred(self, uid: str) -> bool:
        """Return True while the pod is deferred."""
        return uid in self._waiting

    def ended_by_kube_scheduler(self, uid: str) -> bool:
        """Return True if a question of kube-scheduler ended the pod's last deferral."""
        found = self._by_uid.get(uid)
        return found is not None and found.asked

    def pod_changed(self, uid: str) -> None:
        """End the deferral of a changed pod early.

        It lasts at least CHANGE_S, doubled for each earlier deferral up to CHANGE_MAX_S.
        """
        found = self._by_uid.get(uid)
        if found is not None and found.early is EarlyEnd.CHANGED:
            soonest_s = min(CHANGE_S * FACTOR ** min(found.times - 1, 30), CHANGE_MAX_S)
            found.until_s = min(found.until_s, found.since_s + soonest_s)

    def kube_scheduler_asked(self, uid: str) -> None:
        """End the deferral of a pod for which kube-scheduler asked with nodes on offer."""
        found = self._by_uid.get(uid)
        if found is not None and uid in self._waiting and found.early is EarlyEnd.ASKED:
            found.until_s, found.asked = -math.inf, True

    def take_due(self, now_s: float) -> Iterator[str]:
        """End the deferrals that are over, and yield their pods."""
        for uid in [uid for uid in self._waiting if self._by_uid[uid].until_s <= now_s]:
            del self._waiting[uid]
            yield uid

    def reset(self, uid: str) -> None:
        """Delete the deferral and the count of a pod that is bound or deleted."""
        self._by_uid.pop(uid, None)
        self._waiting.pop(uid, None)
