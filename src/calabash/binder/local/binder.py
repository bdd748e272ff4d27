"""The binder of one machine: requests join the queue order, decisions become grants.

Theory of operation. A request is in one of four places: outside the queue order (``admission``), in it (``tracking``
told the scheduler), decided (``starts``: it has its place and waits for those who must leave it) or being granted.
``schedule`` moves requests along as far as that is possible now. Deciding happens under the lock; granting, which
writes to disk, does not, so nobody's decision waits for another's disk. The agent checks every grant against what is
really held, so the scheduler's books can be wrong without anything being promised twice: a grant that finds no room
stays decided and is tried again, one whose device fell ill goes back to where it stood in the order.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

from structlog.contextvars import bound_contextvars

from calabash.adapters.clock import Clock
from calabash.binder.local.admission import WINDOW
from calabash.binder.local.machine import LocalScheduler, Start, Stop
from calabash.binder.local.passes import Passes
from calabash.binder.local.requests import (
    GangKey,
    Requester,
    WaitingRequest,
    gang_key,
    new_id,
    record_of,
    short_command,
)
from calabash.binder.local.starts import Starts
from calabash.binder.local.survey import surveyed
from calabash.binder.local.tracking import Tracker
from calabash.binder.local.wait_times import WaitOutcome, WaitTimes
from calabash.binder.local.waiting import WaitingRequests
from calabash.model.allocation import AllocationRecord, AllocationState
from calabash.model.errors import CalabashError, Reason
from calabash.model.mentions import Mentioned, mention
from calabash.model.request import AllocationId, GpuRequest
from calabash.node.agent import Grant, NodeAgent
from calabash.sched import CycleLimit, Explanation, Options, QueueSpec

# Anybody may name any priority on one machine, so priority orders a queue and never ends a running program. What an
# administrator has guaranteed to a queue is taken back from those who borrowed it.
OPTIONS = Options(preempt=False, reclaim=True, reclaim_fair_share=False)
# Why a grant cannot be made now and may be soon: what must go first is still there, or a device fell ill.
NOT_YET = {
    Reason.NO_CAPACITY,
    Reason.NO_MEMORY,
    Reason.NO_CORES,
    Reason.MODE_CONFLICT,
    Reason.UNHEALTHY,
    Reason.FABRIC_HELD,
}
BETWEEN_CYCLES_S = 0.001  # in which others get the lock
LOST_PLACE = "before anybody was told of it, it lost its place to "  # the explanation of such an end begins so
Granting = Callable[
    [AllocationRecord], AbstractContextManager[None]
]  # entered around a grant; what it raises is its failure


class Binder:
    """What waits, what is decided, what is being granted. Safe for threads.

    Args:
        queues: the queue tree as it is now; asked again when the scheduler is built anew.
        window: most requests of one user and queue that stand in the queue order at a time.
        limit: how long one cycle of the scheduler may take; None: as long as it needs.
    """

    def __init__(
        self,
        *,
        agent: NodeAgent,
        queues: Callable[[], list[QueueSpec]],
        clock: Clock,
        window: int = WINDOW,
        limit: CycleLimit | None = None,
    ) -> None:
        self.granting: Granting = lambda _: nullcontext()
        self.wait_times = WaitTimes()
        self._agent = agent
        self._clock = clock
        self._lock = threading.RLock()
        self._starts = Starts()
        self._asked = 0  # how often a decision was asked for, and up to which of them it has been taken
        self._decided = 0
        self._closed = False
        self._passes = Passes(self.schedule)
        self._tracker = Tracker(
            agent.node,
            surveyed(agent)[0],
            agent.records(),
            queues=queues,
            options=OPTIONS,
            clock=clock,
            limit=limit,
        )
        self._waiting = WaitingRequests(self._tracker, window=window)

    # -- asking ------------------------------------------------------------------------------------------------

    def submit(
        self, request: GpuRequest, *, requester: Requester, command: Sequence[str], wait: bool
    ) -> WaitingRequest:
        """Join the queue order and try at once. Raises CalabashError when it can never be granted."""
        waiting = WaitingRequest(
            id=new_id(),
            request=request,
            requester=requester,
            command=short_command(tuple(command)),
            created_at=self._clock.now_s(),
        )
        waiting.answer.add_done_callback(partial(self._count_wait, waiting, wait, self._clock.monotonic_ns()))
        with self._lock:
            if self._closed:
                raise CalabashError("the pool is going down", reason=Reason.POOL_DOWN, hint="start it: calabash up")
            admitted = self._waiting.join(waiting, at_once=not wait)
        if admitted:
            self.schedule()
            while self._may_be_decided(waiting):
                time.sleep(BETWEEN_CYCLES_S)
                self.schedule()
        return waiting

    def withdraw(self, waiting: WaitingRequest, *, why: str, error: CalabashError | None = None) -> bool:
        """Nobody waits for it any more; ``error`` tells whoever still does. False when it has been answered already."""
        with self._lock:
            waiting.withdrawn = why
            if not (waiting.resolve(error) if error is not None else waiting.answer.cancel()):
                return False
            if not self._starts.being_granted(waiting.id):
                self._forget(waiting)
        self._passes.due()
        return True

    def move(self, waiting: WaitingRequest, queue: str) -> list[WaitingRequest]:
        """To another queue, as ``WaitingRequests.move`` does and raises; the next pass decides."""
        with self._lock:
            return self._waiting.move(waiting, queue, decided=self._starts.__contains__)

    def room_may_have_appeared(self) -> None:
        """Have a pass made soon; returns at once."""
        self._passes.due()

    def schedule(self) -> None:
        """Decide and carry out as far as that is possible now; a decision begun after this call serves it as well."""
        with self._lock:
            self._asked += 1
            mine = self._asked
        again = True
        while again:
            with self._lock:
                if self._closed or self._decided >= mine:
                    return
                self._decided = self._asked
                ready = self._decide()
                due_in_s = self._tracker.scheduler.due_in_s(self._tracker.now_s())
                if due_in_s is not None:
                    self._passes.due_in(due_in_s)
            again = False
            for waiting, start in ready:
                with bound_contextvars(uid=waiting.requester.uid):  # whoever's call it is that carries it out
                    again = self._grant(waiting, start) or again
            mine = self._decided + 1

    def close(self) -> list[WaitingRequest]:
        """Decide nothing any more; those that waited, unanswered."""
        self._passes.stop()
        with self._lock:
            self._closed = True
            self._starts.clear()
            return self._waiting.clear()

    # -- looking -----------------------------------------------------------------------------------------------

    def waiting(self) -> list[WaitingRequest]:
        """Who waits, in the order of arrival."""
        with self._lock:
            return self._waiting.everybody()

    def find(self, allocation: AllocationId) -> WaitingRequest | None:
        """A request that waits."""
        return self._waiting.get(allocation)

    def bound(self, waiting: WaitingRequest) -> bool:
        """Whether it has its place and at most waits for others to leave it."""
        return waiting.id in self._starts

    def why(self, waiting: WaitingRequest) -> Explanation:
        """Why it waits. Raises CalabashError when it does not."""
        with self._lock:
            own = self._starts.why(waiting.id) or self._waiting.why(waiting)
            return own or self._tracker.scheduler.why(waiting.id, self._tracker.now_s())

    @contextmanager
    def reading(self) -> Iterator[LocalScheduler]:
        """The scheduler, which stands still meanwhile."""
        with self._lock:
            yield self._tracker.scheduler

    # -- inside ------------------------------------------------------------------------------------------------

    def _count_wait(self, waiting: WaitingRequest, wait: bool, since_ns: int, answer: Future[Grant]) -> None:
        """Count how long a request waited; one that was not to wait and got nothing did not wait."""
        granted = not answer.cancelled() and answer.exception() is None
        if granted or wait:
            outcome = WaitOutcome.GRANTED if granted else WaitOutcome.NOT_GRANTED
            waited_s = (self._clock.monotonic_ns() - since_ns) / 1e9
            self.wait_times.add(waiting.request.queue, outcome, waited_s)

    def _may_be_decided(self, waiting: WaitingRequest) -> bool:
        """Return True if the last cycle has ended before it looked at the request."""
        with self._lock:
            open_ = not (self._closed or waiting.answer.done() or waiting.id in self._starts)
            return open_ and self._tracker.scheduler.unfinished

    def _decide(self) -> list[tuple[WaitingRequest, Start]]:
        """Those that can be granted now."""
        devices, foreign = surveyed(self._agent)
        if not self._tracker.follow(devices, self._agent.records, foreign=foreign):
            self._starts.clear()
        for decision in self._tracker.decide():
            if isinstance(decision, Stop):
                self._evict(decision)
            elif isinstance(decision, Start) and self._waiting.get(decision.id):  # not what ran and is evicted
                self._starts.decide(decision)
        ready = self._starts.take_ready(lambda other: self._agent.record(other) is None)
        return [(self._waiting[start.id], start) for start in ready]

    def _evict(self, stop: Stop) -> None:
        """What runs is ended, whoever started it decides what then; what has not begun waits again where it stood."""
        if self._starts.drop(stop.id) or self._starts.overtake(stop):
            return
        self._tracker.gone(stop.id)
        with bound_contextvars(uid=getattr(self._agent.record(stop.id), "uid", "")):
            self._agent.end(
                stop.id,
                reason=stop.reason,
                explanation=f"its devices were needed for {mention(Mentioned.REQUEST, stop.by)}",
            )

    def _grant(self, waiting: WaitingRequest, start: Start) -> bool:
        """Whether somebody else may have got a chance by it."""
        record = record_of(waiting, start.placement, because=start.because, now_s=self._clock.now_s())
        try:
            with self.granting(record):
                granted = self._agent.grant(record)
        except Exception as error:  # whatever it is, its requester must hear of it
            return self._failed(waiting, start, error)
        with self._lock:
            overtaken = self._starts.granted(waiting.id)
            self._starts.drop(waiting.id)
            joined = True
            if overtaken is None:
                self._tracker.started(granted.record)
                joined = self._waiting.leave(waiting)
            elif waiting.answer.done():
                self._forget(waiting)
            else:
                self._waiting.rename(waiting, new_id())
        if overtaken is not None:  # nobody was told of it yet: whoever asked waits on where it stood
            self._agent.end(
                granted.record.id,
                reason=overtaken.reason,
                explanation=LOST_PLACE + mention(Mentioned.REQUEST, overtaken.by),
            )
        elif not waiting.resolve(granted):
            self._agent.end(waiting.id, reason="cancelled", explanation=waiting.withdrawn)
        return joined

    def _failed(self, waiting: WaitingRequest, start: Start, error: Exception) -> bool:
        reason = error.reason if isinstance(error, CalabashError) else None
        with self._lock:
            overtaken = self._starts.granted(waiting.id)
            if reason in NOT_YET and not waiting.withdrawn:
                if overtaken is not None:
                    return False  # it has lost its place already and waits where it stood
                if reason is Reason.UNHEALTHY or any(part.start >= 0 for part in start.placement.slices):
                    self._tracker.unbind(waiting.id)  # another device, or another place of this one, may be had
                    return self._starts.refused(start)
                self._starts.again(start, held=_why_held(error) if reason is Reason.FABRIC_HELD else "")
                return False
            self._forget(waiting)
            if waiting.gang_key is not None:
                self._abandon(waiting.gang_key, waiting.id)
        waiting.resolve(error)
        return True

    def _abandon(self, key: GangKey, failed: AllocationId) -> None:
        """One member could not be granted, so none of its gang starts."""
        for record in _granted_of(key, self._agent.records()):
            self._agent.end(record.id, reason=Reason.GANG_INCOMPLETE, explanation=f"{failed} was not granted")
        for other in self._waiting.of_gang(key):
            if self._starts.drop(other.id):
                self._forget(other)
                message = f"member {failed} of gang {key[-1]} was not granted"
                other.resolve(CalabashError(message, reason=Reason.GANG_INCOMPLETE, hint="try again"))

    def _forget(self, waiting: WaitingRequest) -> None:
        """It leaves the order."""
        self._starts.drop(waiting.id)
        self._tracker.gone(waiting.id)
        self._waiting.leave(waiting)


def _granted_of(key: GangKey, records: Sequence[AllocationRecord]) -> list[AllocationRecord]:
    """The members of a gang that have been granted and do not run yet."""
    return [r for r in records if r.state is AllocationState.GRANTED and gang_key(r.uid, r.request) == key]


def _why_held(error: Exception) -> str:
    """The error and its hint as they are told to the requester."""
    if not isinstance(error, CalabashError):
        return str(error)
    return f"{error.marked_message}\nhint: {error.marked_hint}" if error.marked_hint else error.marked_message
