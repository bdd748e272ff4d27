"""Queue of writes: the order in which they are made, and their pauses.

Theory of operation. The writes of one pod are made one at a time, in the order in which they were requested. A later
write of the same kind replaces one that still waits, so a pod never has more writes waiting than there are kinds.
Namespaces are served in turn, however many pods each has. No namespace has more than ``share_max`` writes in progress,
so that slow calls for one namespace leave threads for the others. While a failed write waits for its next attempt, the
later writes of its pod wait too. If the API server is overloaded, all writes wait (``pause``).

Time is an argument; the caller holds a lock.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from calabash.kubernetes.objects.pod_name import PodName


class PodWrite(Protocol):
    """A write that concerns one pod."""

    @property
    def pod(self) -> PodName: ...


A = TypeVar("A", bound=PodWrite)


@dataclass(slots=True)
class AttemptedWrite(Generic[A]):
    """A write and its failed attempts.

    Args:
        conflicts: number of attempts that the API server refused because the pod had been changed (409).
        faults: number of attempts that the API server answered with an internal error (5xx).
    """

    action: A
    conflicts: int = 0
    faults: int = 0


@dataclass(slots=True)
class _Pod(Generic[A]):
    namespace: str
    waiting: dict[type, AttemptedWrite[A]] = field(default_factory=dict)
    in_progress: bool = False
    not_before_s: float = -math.inf


class WriteQueue(Generic[A]):
    """Queue of writes; see the module's description.

    Args:
        share_max: number of writes for one namespace that may be in progress at the same time.
    """

    def __init__(self, share_max: int) -> None:
        self._share_max = max(1, share_max)
        self._pods: dict[str, _Pod[A]] = {}
        self._ready: dict[str, deque[str]] = {}  # UIDs of pods with a write that may be made now, by namespace
        self._namespaces: deque[str] = deque()  # namespaces with such pods
        self._later: list[tuple[float, int, str]] = []
        self._numbers = itertools.count()
        self._in_progress: Counter[str] = Counter()
        self._paused_until_s = -math.inf

    def __len__(self) -> int:
        """Return the number of writes that wait or are in progress."""
        return sum(len(pod.waiting) + pod.in_progress for pod in self._pods.values())

    def put(self, action: A) -> None:
        """Add a write; it replaces a waiting one of the same kind and pod."""
        uid = action.pod.uid
        pod = self._pods.get(uid)
        if pod is None:
            pod = self._pods[uid] = _Pod(action.pod.namespace)
        idle = not pod.waiting and not pod.in_progress
        before = pod.waiting.pop(type(action), None)
        pod.waiting[type(action)] = AttemptedWrite(action)
        if before is not None and before.action == action:
            pod.waiting[type(action)] = before
        if idle:
            self._schedule(uid, pod)

    def take(self, now_s: float) -> AttemptedWrite[A] | None:
        """Remove and return the next write that may be made now; None if there is none.

        The caller makes the write and then calls ``done`` or ``retry`` with it.
        """
        while self._later and self._later[0][0] <= now_s:
            _, _, uid = heapq.heappop(self._later)
            self._make_ready(uid)
        if self.is_paused(now_s):
            return None
        for _ in range(len(self._namespaces)):
            namespace = self._namespaces.popleft()
            if self._in_progress[namespace] >= self._share_max:
                self._namespaces.append(namespace)
                continue
            uids = self._ready[namespace]
            uid = uids.popleft()
            if uids:
                self._namespaces.append(namespace)
            else:
                del self._ready[namespace]
            pod = self._pods[uid]
            pod.in_progress = True
            self._in_progress[namespace] += 1
            return pod.waiting.pop(next(iter(pod.waiting)))
        return None

    def done(self, write: AttemptedWrite[A]) -> None:
        """Remove a write that was made or given up."""
        uid, pod = self._ended(write)
        pod.not_before_s = -math.inf
        if pod.waiting:
            self._schedule(uid, pod)
        else:
            del self._pods[uid]

    def retry(self, write: AttemptedWrite[A], at_s: float) -> None:
        """Add a failed write again, to be made at ``at_s`` or later.

        If another write of the same kind was added for the pod meanwhile, only that one is made, at ``at_s`` or later.
        """
        uid, pod = self._ended(write)
        if type(write.action) not in pod.waiting:
            pod.waiting = {type(write.action): write, **pod.waiting}
        pod.not_before_s = at_s
        self._schedule(uid, pod)

    def pause(self, until_s: float) -> None:
        """Let no write begin before ``until_s``."""
        self._paused_until_s = until_s

    def is_paused(self, now_s: float) -> bool:
        """Return True while no write may begin."""
        return now_s < self._paused_until_s

    def next_s(self, now_s: float) -> float:
        """Return the time at which ``take`` may next return a write.

        Infinity means that ``take`` returns None until ``put``, ``done`` or ``retry`` is called.
        """
        if self.is_paused(now_s):
            return self._paused_until_s
        return self._later[0][0] if self._later else math.inf

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _ended(self, write: AttemptedWrite[A]) -> tuple[str, _Pod[A]]:
        uid = write.action.pod.uid
        pod = self._pods[uid]
        pod.in_progress = False
        self._in_progress[pod.namespace] -= 1
        if not self._in_progress[pod.namespace]:
            del self._in_progress[pod.namespace]
        return uid, pod

    def _schedule(self, uid: str, pod: _Pod[A]) -> None:
        if pod.not_before_s == -math.inf:
            self._make_ready(uid)
        else:
            heapq.heappush(self._later, (pod.not_before_s, next(self._numbers), uid))

    def _make_ready(self, uid: str) -> None:
        namespace = self._pods[uid].namespace
        if namespace not in self._ready:
            self._ready[namespace] = deque()
            self._namespaces.append(namespace)
        self._ready[namespace].append(uid)
