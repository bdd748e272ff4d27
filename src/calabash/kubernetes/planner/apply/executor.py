"""Carry out the planner's actions: a few threads write, and the writes of one pod are made one at a time, in order.

Theory of operation. Every answer of the API server ends an attempt in one of five ways:

| answer | next step |
|---|---|
| success, or the pod is gone | the next write of the pod |
| 409, the pod has changed | repeat with growing pauses, then give up as after a refusal |
| other 4xx (``is_final``) | give up: the core is told that the write was refused, and why |
| 5xx for the pods of one namespace | repeat with growing pauses, then give up as after a refusal |
| 429, 503, no answer, or 5xx for several namespaces | repeat without limit; all writes pause (Retry-After) |

Apart from the last case, a pause holds back the writes of one pod only, and namespaces are served in turn
(``write_queue``). So a pod whose writes fail delays no other pod. Before each attempt the core is asked whether the
action is still wanted; if not, it is dropped. Reports have a thread and a queue of their own, and only the last report
of each pod is written.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any, Generic, Protocol, TypeVar

import structlog

from calabash.adapters.kube import EvictedAs, is_final, status_of
from calabash.adapters.kube.objects.core import Pod
from calabash.kubernetes.objects.pod_name import PodName
from calabash.kubernetes.planner.apply.api_writes import ApiWrites, LeadsNoLonger, camel
from calabash.kubernetes.planner.apply.write_queue import AttemptedWrite, PodWrite, WriteQueue
from calabash.kubernetes.planner.state.facts import (
    Action,
    EvictPod,
    Nominate,
    ReleasePod,
    Report,
    SweepPod,
    UngatePod,
    WritePlan,
)
from calabash.model.errors import CalabashError, Reason

log = structlog.get_logger(__name__)

_PAUSE_FIRST_S, _PAUSE_MAX_S = 0.1, 5.0
_CONFLICTS_MAX = 12  # pauses of about 35 s in total
_FAULTS_MAX = 10
_REPORT_EVERY_S = 0.02
_PATIENCE = frozenset((0, HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE))


class Outcomes(Protocol):
    """Receiver of the results of writes; it also decides which actions are still wanted. Safe for threads."""

    def last_seen(self, pod: PodName) -> Pod | None:
        """Return the pod as last seen; None if it is unknown."""
        ...

    def is_wanted(self, action: Action) -> bool:
        """Return True if the action still matches the pod's state, so it is to be carried out."""
        ...

    def plan_written(self, uid: str, plan_id: str, *, ok: bool) -> None: ...

    def pod_deleted(self, pod: PodName) -> None:
        """Handle a write that failed because the API server has no pod with this name and UID."""
        ...

    def eviction_refused(self, uid: str, message: str) -> None:
        """Handle that the pod was not evicted, because a disruption budget or the API server refused it."""
        ...

    def write_refused(self, action: Action, message: str) -> None:
        """Handle that the API server refused the write, and would refuse it again until the pod is changed."""
        ...


class Executor:
    """Threads that carry out actions; see the module's description.

    Args:
        writes: makes the calls of the API server.
        outcomes: receives the results, and says which actions are still wanted.
        workers: number of threads; each has at most one open call. Writes for one namespace use at most half of them.
    """

    def __init__(self, writes: ApiWrites, outcomes: Outcomes, *, workers: int = 16) -> None:
        self._writes = writes
        self._outcomes = outcomes
        self._stopping = threading.Event()
        self._actions = _ThreadQueue[Action]((workers + 1) // 2, self._stopping)
        self._reports = _ThreadQueue[Report](1, self._stopping)
        self._written_to: Counter[str] = Counter()  # number of plans that are being written, by node
        self._counting = threading.Lock()
        self._threads = [threading.Thread(target=self._work, name=f"planner-{i}", daemon=True) for i in range(workers)]
        self._threads.append(threading.Thread(target=self._report, name="planner-reports", daemon=True))

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop once the writes in progress are done. Writes that have not begun are dropped."""
        self._stopping.set()
        self._actions.wake()
        self._reports.wake()
        for thread in self._threads:
            thread.join()

    def put(self, actions: Iterable[Action]) -> None:
        """Add actions to be carried out."""
        for action in actions:
            if isinstance(action, Report):
                self._reports.put(action)
            else:
                self._actions.put(action)

    def retry_now(self) -> None:
        """End all pauses, because the API server answers again."""
        self._actions.resume()
        self._reports.resume()

    def writes_for(self, node: str) -> bool:
        """Return True if a plan for the node may be in the course of being written.

        A planner asks this before it hands the node over. Later writes need not be counted: before each write, the
        executor asks whether it is still wanted.
        """
        with self._counting:
            return self._written_to[node] > 0

    def idle(self) -> bool:
        """Return True if no action waits or is in progress; reports do not count."""
        return len(self._actions) == 0

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while (write := self._actions.take()) is not None:
            action = write.action
            node = action.plan.node if isinstance(action, ReleasePod | WritePlan) else ""
            self._count(node, 1)
            try:
                self._attempt(write)
            finally:
                self._count(node, -1)

    def _count(self, node: str, more: int) -> None:
        if node:
            with self._counting:
                self._written_to[node] += more
                if not self._written_to[node]:
                    del self._written_to[node]

    def _attempt(self, write: AttemptedWrite[Action]) -> None:
        action = write.action
        pause_s: float | None = None
        try:
            if self._outcomes.is_wanted(action):
                self._do(action, fresh=write.conflicts + write.faults > 0)
                self._actions.answered()
        except LeadsNoLonger:
            pass
        except CalabashError as error:
            pause_s = self._pause_s(self._actions, write, error)
            if pause_s is None:
                self._give_up(action, error)
        except Exception as error:
            log.exception("an action failed", pod=action.pod.text, error=str(error))
        if pause_s is None:
            self._actions.done(write)
        else:
            self._actions.retry(write, pause_s)

    def _pause_s(self, waiting: _ThreadQueue[Any], write: AttemptedWrite[Any], error: CalabashError) -> float | None:
        """Count a failed attempt; return the pause before the next one in seconds, or None if the write is given up."""
        status = status_of(error)
        if error.reason is Reason.NOT_FOUND or is_final(error):
            waiting.answered()
            return None
        if error.reason is Reason.CONFLICT:
            waiting.answered()
            write.conflicts += 1
            if write.conflicts > _CONFLICTS_MAX:
                return None
            return _pause(write.conflicts - 2) if write.conflicts > 1 else 0.0
        if status in _PATIENCE or waiting.failed(write.action.pod.namespace):
            waiting.overloaded(getattr(error, "retry_after_s", 0.0))
            return 0.0
        write.faults += 1
        if write.faults > _FAULTS_MAX:
            return None
        return max(_pause(write.faults - 1), getattr(error, "retry_after_s", 0.0))

    def _give_up(self, action: Action, error: CalabashError) -> None:
        if error.reason is Reason.NOT_FOUND:
            if isinstance(action, ReleasePod | UngatePod | Nominate):
                self._outcomes.pod_deleted(action.pod)
            return
        log.warning(
            "the API server refused a write", pod=action.pod.text, write=type(action).__name__, error=error.message
        )
        self._outcomes.write_refused(action, error.message)

    def _do(self, action: Action, *, fresh: bool) -> None:
        match action:
            case ReleasePod(pod=pod, plan=plan):
                self._writes.release(pod, plan, None if fresh else self._outcomes.last_seen(pod), nodes=action.nodes)
                self._outcomes.plan_written(pod.uid, plan.id, ok=True)
            case UngatePod(pod=pod):
                self._writes.ungate(pod)
            case WritePlan(pod=pod, plan=plan):
                self._writes.write_plan(pod, plan)
            case Nominate(pod=pod, node=node):
                if self._writes.is_to_be_nominated(self._outcomes.last_seen(pod)):
                    self._writes.nominate(pod, node)
            case EvictPod():
                self._evict(action)
            case SweepPod(pod=pod, is_recreated=is_recreated, message=message):
                self._writes.write_event(pod, "KubeletRefused", message)
                if is_recreated:
                    self._writes.evict(pod)

    def _evict(self, action: EvictPod) -> None:
        """Evict a pod.

        If a disruption budget refuses, and the pod's devices are borrowed and reclaimed (``action.owed``), the pod is
        deleted instead, because deletion is not subject to budgets.
        """
        pod = action.pod
        try:
            as_, message = self._writes.evict(pod, grace_max_s=action.grace_max_s)
        except CalabashError as error:
            if not action.owed or status_of(error) != HTTPStatus.INTERNAL_SERVER_ERROR:
                raise
            as_, message = EvictedAs.BLOCKED, error.message  # a pod with two budgets is never evicted
        if as_ is EvictedAs.BLOCKED and action.owed:
            text = f"{action.message}; its devices are borrowed, so it is deleted regardless of its budget: {message}"
            self._writes.write_event(pod, "BudgetOverruled", text)
            self._writes.delete(pod, grace_max_s=action.grace_max_s)
            as_ = EvictedAs.OK
        if as_ is EvictedAs.BLOCKED:
            self._outcomes.eviction_refused(pod.uid, message)
        elif as_ is EvictedAs.OK:
            self._writes.write_event(pod, camel(action.reason), action.message)

    def _report(self) -> None:
        while (write := self._reports.take()) is not None:
            report = write.action
            pause_s: float | None = None
            try:
                if self._outcomes.is_wanted(report):
                    self._writes.report(report)
                    self._reports.answered()
            except LeadsNoLonger:
                pass
            except CalabashError as error:
                pause_s = self._pause_s(self._reports, write, error)
                if pause_s is None and error.reason is not Reason.NOT_FOUND:
                    log.warning("a report was refused", pod=report.pod.text, error=error.message)
            except Exception as error:
                log.exception("a report failed", pod=report.pod.text, error=str(error))
            if pause_s is None:
                self._reports.done(write)
            else:
                self._reports.retry(write, pause_s)
            self._stopping.wait(_REPORT_EVERY_S)


A = TypeVar("A", bound=PodWrite)


class _ThreadQueue(Generic[A]):
    """A ``WriteQueue`` on which threads can block, and which pauses while the API server is overloaded."""

    def __init__(self, share_max: int, stopping: threading.Event) -> None:
        self._queue = WriteQueue[A](share_max)
        self._stopping = stopping
        self._changed = threading.Condition()
        self._overloads = 0  # consecutive overloads
        self._faulty: set[str] = set()  # namespaces with failed writes since the last answered one

    def __len__(self) -> int:
        with self._changed:
            return len(self._queue)

    def put(self, action: A) -> None:
        with self._changed:
            self._queue.put(action)
            self._changed.notify()

    def take(self) -> AttemptedWrite[A] | None:
        """Block until a write may be made and return it; None once the executor stops."""
        with self._changed:
            while not self._stopping.is_set():
                now_s = time.monotonic()
                write = self._queue.take(now_s)
                if write is not None:
                    return write
                self._changed.wait(min(self._queue.next_s(now_s) - now_s, threading.TIMEOUT_MAX))
            return None

    def done(self, write: AttemptedWrite[A]) -> None:
        with self._changed:
            self._queue.done(write)
            self._changed.notify()

    def retry(self, write: AttemptedWrite[A], pause_s: float) -> None:
        with self._changed:
            self._queue.retry(write, time.monotonic() + pause_s)
            self._changed.notify()

    def wake(self) -> None:
        """Wake all threads that wait in ``take``, so that they see that the executor stops."""
        with self._changed:
            self._changed.notify_all()

    def resume(self) -> None:
        """End the pause of all writes, because the API server answers again."""
        with self._changed:
            self._overloads = 0
            self._queue.pause(0.0)
            self._changed.notify_all()

    def answered(self) -> None:
        """Reset the counts of overloads and faults, because the API server has answered a write."""
        with self._changed:
            self._overloads = 0
            self._faulty.clear()

    def failed(self, namespace: str) -> bool:
        """Record a failed write; return True if writes in several namespaces have failed since the last answer."""
        with self._changed:
            self._faulty.add(namespace)
            return len(self._faulty) > 1

    def overloaded(self, retry_after_s: float) -> None:
        """Pause all writes for at least ``retry_after_s`` seconds. Does nothing during a pause.

        Hence several calls that were open at the same time and fail together cause one pause.
        """
        with self._changed:
            now_s = time.monotonic()
            if self._queue.is_paused(now_s):
                return
            self._queue.pause(now_s + max(_pause(self._overloads), retry_after_s))
            self._overloads += 1
            self._changed.notify_all()


def _pause(times: int) -> float:
    """Return the pause in seconds after ``times`` earlier failures, which doubles with each, and has random jitter."""
    return min(_PAUSE_FIRST_S * 2.0 ** min(times, 30), _PAUSE_MAX_S) * random.uniform(0.5, 1.0)  # noqa: S311 - jitter
