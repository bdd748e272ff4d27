"""Carries out what the planner wants: a few threads, each pod's actions by one of them and in order.

What fails because the API server is away is tried again with growing pauses; what fails because the pod has changed is
looked at again; what is no longer the plan when its turn comes is not written. Reports wait behind everything else, and
only the last of each pod is told.
"""

from __future__ import annotations

import queue
import random
import threading
from collections import Counter
from collections.abc import Iterable
from typing import Protocol

import structlog

from calabash.kubernetes.planner.facts import (
    Action,
    EvictPod,
    Nominate,
    PodName,
    ReleasePod,
    Report,
    SweepPod,
    UngatePod,
    WritePlan,
)
from calabash.kubernetes.planner.orders import LeadsNoLonger, Orders, camel
from calabash.model.errors import CalabashError, Reason
from calabash.seams.kube import EvictedAs
from calabash.seams.kube.objects import Pod

log = structlog.get_logger(__name__)

_PAUSE_FIRST_S, _PAUSE_MAX_S = 0.1, 5.0
_CONFLICTS_MAX = 5
_REPORT_EVERY_S = 0.02


class Outcomes(Protocol):
    """Who is told what became of an action, and asked whether it is still wanted. Safe for threads."""

    def seen(self, pod: PodName) -> Pod | None:
        """The pod as it was last seen."""
        ...

    def wanted(self, action: Action) -> bool:
        """Whether it is still to be done."""
        ...

    def released(self, uid: str, plan_id: str, *, ok: bool) -> None: ...

    def gone(self, pod: PodName) -> None:
        """The API server knows no such pod any more."""
        ...

    def blocked(self, uid: str, message: str) -> None: ...


class Executor:
    """See the module's description.

    Args:
        workers: threads; each has at most one call open.
    """

    def __init__(self, orders: Orders, outcomes: Outcomes, *, workers: int = 16) -> None:
        self._orders = orders
        self._outcomes = outcomes
        self._stopping = threading.Event()
        self._hurry = threading.Condition()
        self._queues: list[queue.SimpleQueue[Action | None]] = [queue.SimpleQueue() for _ in range(workers)]
        self._written_to: Counter[str] = Counter()  # nodes for which a plan may be on its way now
        self._counting = threading.Lock()
        self._reports: dict[str, Report] = {}
        self._reports_due = threading.Event()
        self._threads = [
            threading.Thread(target=self._work, args=(one,), name=f"planner-{i}", daemon=True)
            for i, one in enumerate(self._queues)
        ]
        self._threads.append(threading.Thread(target=self._report, name="planner-reports", daemon=True))

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End after what is being done now; the rest is not done."""
        self._stopping.set()
        self.hurry()
        self._reports_due.set()
        for one in self._queues:
            one.put(None)
        for thread in self._threads:
            thread.join()

    def put(self, actions: Iterable[Action]) -> None:
        """Have these done soon."""
        for action in actions:
            if isinstance(action, Report):
                self._reports[action.pod.uid] = action
                self._reports_due.set()
            else:
                self._queues[hash(action.pod.uid) % len(self._queues)].put(action)

    def hurry(self) -> None:
        """The API server answers: what waits for it is tried now."""
        with self._hurry:
            self._hurry.notify_all()

    def writes_for(self, node: str) -> bool:
        """Whether a plan for that node may be on its way. One that begins later is asked for first whether it is wanted."""
        with self._counting:
            return self._written_to[node] > 0

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _pause(self, seconds: float, *, away: bool) -> None:
        """Wait, with jitter; not for an API server that is back."""
        seconds *= random.uniform(0.5, 1.0)  # noqa: S311 - jitter
        if not away:
            self._stopping.wait(seconds)
            return
        with self._hurry:
            if not self._stopping.is_set():
                self._hurry.wait(seconds)

    def _work(self, todo: queue.SimpleQueue[Action | None]) -> None:
        while (action := todo.get()) is not None and not self._stopping.is_set():
            node = action.plan.node if isinstance(action, ReleasePod | WritePlan) else ""
            self._count(node, 1)
            try:
                self._persist(action)
            except Exception as error:
                log.exception("an action failed", pod=action.pod.text, error=str(error))
            finally:
                self._count(node, -1)

    def _count(self, node: str, more: int) -> None:
        if node:
            with self._counting:
                self._written_to[node] += more
                if not self._written_to[node]:
                    del self._written_to[node]

    def _persist(self, action: Action) -> None:
        pause_s, conflicts = _PAUSE_FIRST_S, 0
        fresh = False
        while self._outcomes.wanted(action) and not self._stopping.is_set():
            try:
                self._do(action, fresh=fresh)
            except LeadsNoLonger:
                return
            except CalabashError as error:
                if error.reason is Reason.NOT_FOUND:
                    if isinstance(action, ReleasePod | UngatePod | Nominate):
                        self._outcomes.gone(action.pod)
                    return
                conflicts += error.reason is Reason.CONFLICT
                fresh = True
                if error.reason not in (Reason.CONFLICT, Reason.API_DOWN) or conflicts > _CONFLICTS_MAX:
                    log.warning("refused by the API server", pod=action.pod.text, error=error.message)
                if error.reason is not Reason.CONFLICT or conflicts > 1:
                    self._pause(pause_s, away=error.reason is Reason.API_DOWN)
                    pause_s = min(2 * pause_s, _PAUSE_MAX_S)
            else:
                return

    def _do(self, action: Action, *, fresh: bool) -> None:
        match action:
            case ReleasePod(pod=pod, plan=plan):
                self._orders.release(pod, plan, None if fresh else self._outcomes.seen(pod), nodes=action.nodes)
                self._outcomes.released(pod.uid, plan.id, ok=True)
            case UngatePod(pod=pod):
                self._orders.ungate(pod)
            case WritePlan(pod=pod, plan=plan):
                self._orders.write_plan(pod, plan)
            case Nominate(pod=pod, node=node):
                if self._orders.is_to_be_nominated(self._outcomes.seen(pod)):
                    self._orders.nominate(pod, node)
            case EvictPod(pod=pod):
                as_, message = self._orders.evict(pod)
                if as_ is EvictedAs.BLOCKED:
                    self._outcomes.blocked(pod.uid, message)
                elif as_ is EvictedAs.OK:
                    self._orders.tell(pod, camel(action.reason), action.message)
            case SweepPod(pod=pod, remade=remade, message=message):
                self._orders.tell(pod, "KubeletRefused", message)
                if remade:
                    self._orders.evict(pod)

    def _report(self) -> None:
        while not self._stopping.is_set():
            self._reports_due.wait()
            self._reports_due.clear()
            while self._reports and not self._stopping.is_set():
                uid = next(iter(self._reports))
                report = self._reports.pop(uid)
                try:
                    if self._outcomes.wanted(report):
                        self._orders.report(report)
                except LeadsNoLonger:
                    continue
                except CalabashError as error:
                    if error.reason is Reason.API_DOWN:
                        self._reports.setdefault(uid, report)  # unless there is a later one
                        self._pause(_PAUSE_MAX_S, away=True)
                    elif error.reason is not Reason.NOT_FOUND:
                        log.warning("a report was refused", pod=report.pod.text, error=error.message)
                except Exception as error:
                    log.exception("a report failed", pod=report.pod.text, error=str(error))
                self._stopping.wait(_REPORT_EVERY_S)
