"""Deferrals of pods whose last plan could not be used.

Theory of operation. A plan is withdrawn if the API server refuses to store it, or if kube-scheduler does not use it.
The pod is then deferred: it is in no queue for a while, so that its devices can go to other pods. Each further deferral
of the pod is twice as long, up to a limit. A deferral ends early if the next plan is likely to succeed: the pod was
changed, or kube-scheduler found nodes that lack nothing but devices. Once the pod is bound, its count is reset.
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
    """Event that ends a deferral early. CHANGED: the pod was changed. ASKED: kube-scheduler offered nodes for it."""

    NEVER = "never"
    CHANGED = "changed"
    ASKED = "asked"


@dataclass(slots=True)
class _Deferral:
    times: int = 0
    early: EarlyEnd = EarlyEnd.NEVER
    since_s: float = 0.0
    until_s: float = -math.inf
    ended_by_kube_scheduler: bool = False  # kube-scheduler's question ended the last deferral


class Deferrals:
    """Deferred pods; see the module's description."""

    def __init__(self) -> None:
        self._by_uid: dict[str, _Deferral] = {}
        self._waiting: dict[str, None] = {}

    def defer(self, uid: str, now_s: float, *, first_s: float, max_s: float, early: EarlyEnd) -> float:
        """Defer a pod; return for how many seconds it is deferred if nothing ends the deferral early.

        Args:
            first_s: length of a pod's first deferral in seconds.
            max_s: greatest length of a deferral in seconds.
            early: event that ends this deferral early.
        """
        found = self._by_uid.setdefault(uid, _Deferral())
        delay_s = min(first_s * FACTOR ** min(found.times, 30), max_s)
        found.times += 1
        found.early = early
        found.ended_by_kube_scheduler = False
        found.since_s, found.until_s = now_s, now_s + delay_s
        self._waiting[uid] = None
        return delay_s

    def is_deferred(self, uid: str) -> bool:
        """Return True while the pod is deferred."""
        return uid in self._waiting

    def ended_by_kube_scheduler(self, uid: str) -> bool:
        """Return True if the pod's last deferral ended early because kube-scheduler offered nodes for the pod."""
        found = self._by_uid.get(uid)
        return found is not None and found.ended_by_kube_scheduler

    def pod_changed(self, uid: str) -> None:
        """Shorten the deferral of a changed pod, if a change may end this deferral early.

        The shortened deferral lasts CHANGE_S seconds, doubled for each earlier deferral up to CHANGE_MAX_S. So a pod
        that changes continuously is not planned continuously.
        """
        found = self._by_uid.get(uid)
        if found is not None and found.early is EarlyEnd.CHANGED:
            soonest_s = min(CHANGE_S * FACTOR ** min(found.times - 1, 30), CHANGE_MAX_S)
            found.until_s = min(found.until_s, found.since_s + soonest_s)

    def kube_scheduler_asked(self, uid: str) -> None:
        """End the deferral of a pod for which kube-scheduler has offered nodes, if it ends early for such an offer."""
        found = self._by_uid.get(uid)
        if found is not None and uid in self._waiting and found.early is EarlyEnd.ASKED:
            found.until_s, found.ended_by_kube_scheduler = -math.inf, True

    def take_due(self, now_s: float) -> Iterator[str]:
        """Yield the UIDs of pods whose deferral is over, and remove their deferrals."""
        for uid in [uid for uid in self._waiting if self._by_uid[uid].until_s <= now_s]:
            del self._waiting[uid]
            yield uid

    def reset(self, uid: str) -> None:
        """Delete the deferral of a pod that is bound or deleted, and the number of its earlier deferrals."""
        self._by_uid.pop(uid, None)
        self._waiting.pop(uid, None)
