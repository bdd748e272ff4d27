"""Binder of one machine: requests join the queue order, and decisions become grants.

Theory of operation. A request is in one of four states: outside the queue order (``admission``), in it (``tracking``),
decided (``starts``: devices are chosen for it, and it waits for other allocations on these to end), or being granted.
``schedule`` advances requests as far as possible now. Decisions are made under the lock. Grants are made without it,
because they write to disk and no decision should wait for a disk. The agent checks every grant against the allocations
that are really held, so an outdated scheduler cannot give a device to two requests. If a grant finds no free capacity,
the request stays decided and the grant is tried again. If the device has become unhealthy, the request waits in the
queue again and keeps its age.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
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
from calabash.binder.local.tracking import Tracker
from calabash.binder.local.unmanaged_memory import UnmanagedDeviceMemory
from calabash.binder.local.wait_times import WaitOutcome, WaitTimes
from calabash.binder.local.waiting import WaitingRequests
from calabash.model.allocation import AllocationRecord, AllocationState
from calabash.model.device import Device, DeviceUuid, Health
from calabash.model.errors import CalabashError, Reason
from calabash.model.messages import Message, RequestName, Text, joined
from calabash.model.request import AllocationId, GpuRequest
from calabash.node.agent import Grant, NodeAgent
from calabash.node.audit.process_census import describe_process
from calabash.node.snapshot import DeviceSnapshot
from calabash.sched import CycleLimit, Explanation, Options, QueueSpec
from calabash.sharing.registry import mode_of_device

# Any user may name any priority on one machine, so priority orders a queue and never ends a running program. Devices that
# an administrator has guaranteed to a queue are reclaimed from queues that borrow them.
OPTIONS = Options(preempt=False, reclaim=True, reclaim_fair_share=False)
# Reasons for which a grant may succeed later: other allocations have not ended yet, or a device became unhealthy.
NOT_YET = {
    Reason.NO_CAPACITY,
    Reason.NO_MEMORY,
    Reason.NO_CORES,
    Reason.MODE_CONFLICT,
    Reason.UNHEALTHY,
    Reason.FABRIC_HELD,
}
BETWEEN_CYCLES_S = 0.001  # pause in which other threads get the lock
LOST_PLACE = "before anybody was told of it, it lost its place to {by}"
Granting = Callable[[AllocationRecord], AbstractContextManager[None]]


class Binder:
    """Waiting, decided and granted requests. Safe for threads.

    Args:
        agent: makes the grants, and reports devices and allocations.
        queues: returns the current queue tree; called again when the scheduler is rebuilt.
        window: most requests of one user and queue that are in the queue order at a time.
        limit: time limit of one scheduler cycle; None: unlimited.
        half_life_s: half-life of past use in fair shares; 0: past use does not count.
        granting: returns a context in which the grant of a record is made; if the context raises, the grant fails.
    """

    def __init__(
        self,
        *,
        agent: NodeAgent,
        queues: Callable[[], list[QueueSpec]],
        clock: Clock,
        window: int = WINDOW,
        limit: CycleLimit | None = None,
        half_life_s: float = 0.0,
        granting: Granting = lambda _: nullcontext(),
    ) -> None:
        self._granting = granting
        self.wait_times = WaitTimes()
        self._agent = agent
        self._clock = clock
        self._lock = threading.RLock()
        self._starts = Starts()
        self._asked = 0  # number of calls of ``schedule``; ``_decided``: those that are served
        self._decided = 0
        self._closed = False
        self._passes = Passes(self.schedule)
        self._tracker = Tracker(
            agent.node,
            _read_devices(agent)[0],
            agent.records(),
            queues=queues,
            options=replace(OPTIONS, half_life_s=half_life_s),
            clock=clock,
            limit=limit,
        )
        self._waiting = WaitingRequests(self._tracker, window=window)

    # -- requests----------------------------------------------------------------------------------------------

    def submit(
        self, request: GpuRequest, *, requester: Requester, command: Sequence[str], wait: bool
    ) -> WaitingRequest:
        """Add a request and try to grant it at once. Raises CalabashError if it can never be granted.

        ``wait`` False admits it to this attempt even if the user's window of waiting requests is full. The caller
        withdraws such a request if it was not granted.
        """
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
            admitted = self._waiting.add(waiting, at_once=not wait)
        if admitted:
            self.schedule()
            while self._may_be_decided(waiting):
                time.sleep(BETWEEN_CYCLES_S)
                self.schedule()
        return waiting

    def withdraw(self, waiting: WaitingRequest, *, why: Text, error: CalabashError | None = None) -> bool:
        """Withdraw a request. Its answer is ``error``; None cancels the answer. ``why`` is the reason for users.

        Returns False if the request has been answered already.
        """
        with self._lock:
            waiting.withdrawn = why
            if not (waiting.resolve(error) if error is not None else waiting.answer.cancel()):
                return False
            if not self._starts.is_being_granted(waiting.id):
                self._remove(waiting)
        self._passes.request()
        return True

    def move(self, waiting: WaitingRequest, queue: str) -> list[WaitingRequest]:
        """Move a request to another queue; see ``WaitingRequests.move``. It is considered there in the next pass."""
        with self._lock:
            return self._waiting.move(waiting, queue, decided=self._starts.__contains__)

    def room_may_have_appeared(self) -> None:
        """Request a scheduling pass, because capacity may have been freed. Returns at once."""
        self._passes.request()

    def schedule(self) -> None:
        """Make one scheduling pass: decide about requests, and carry out the decisions as far as possible now.

        Returns at once if another thread begins a pass after this call, because that pass considers the same changes.
        """
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
                    self._passes.request_in(due_in_s)
            again = False
            for waiting, start in ready:
                with bound_contextvars(
                    uid=waiting.requester.uid
                ):  # log the requester, not the user whose call made this pass
                    again = self._grant(waiting, start) or again
            mine = self._decided + 1

    def close(self) -> list[WaitingRequest]:
        """Stop deciding; return the waiting requests, which the caller has to answer."""
        self._passes.stop()
        with self._lock:
            self._closed = True
            self._starts.clear()
            return self._waiting.clear()

    # -- queries -----------------------------------------------------------------------------------------------

    def waiting(self) -> list[WaitingRequest]:
        """Return all waiting requests, in the order of arrival."""
        with self._lock:
            return self._waiting.all()

    def find(self, allocation: AllocationId) -> WaitingRequest | None:
        """Return a waiting request; None if there is none with this ID."""
        return self._waiting.get(allocation)

    def is_placed(self, waiting: WaitingRequest) -> bool:
        """Return True if devices are chosen for the request; it may still wait for other allocations on them to end."""
        return waiting.id in self._starts

    def explain_wait(self, waiting: WaitingRequest) -> Explanation:
        """Return why the request waits. Raises CalabashError if it does not wait."""
        with self._lock:
            own = self._starts.explain_wait(waiting.id) or self._waiting.explain_wait(waiting)
            return own or self._tracker.scheduler.explain_wait(waiting.id, self._tracker.now_s())

    @contextmanager
    def reading(self) -> Iterator[LocalScheduler]:
        """Return a context that holds the lock, so that the scheduler can be read and does not change."""
        with self._lock:
            yield self._tracker.scheduler

    def past_use(self) -> dict[str, float]:
        """Return the past use of all queues until now, in device-seconds."""
        with self._lock:
            self._tracker.count_use()
            return dict(self._tracker.scheduler.scheduler.tree.past())

    def restore_past_use(self, past: Mapping[str, float], ago_s: float) -> None:
        """Set the past use that the queues had ``ago_s`` seconds ago. The allocations that are held now count from then on."""
        with self._lock:
            self._tracker.scheduler.scheduler.restore_past_use(past, self._tracker.now_s() - ago_s)
            self._tracker.count_use()

    # -- inside ------------------------------------------------------------------------------------------------

    def _count_wait(self, waiting: WaitingRequest, wait: bool, since_ns: int, answer: Future[Grant]) -> None:
        """Count the waiting time of an answered request, unless it was not granted and ``wait`` is False."""
        granted = not answer.cancelled() and answer.exception() is None
        if granted or wait:
            outcome = WaitOutcome.GRANTED if granted else WaitOutcome.NOT_GRANTED
            waited_s = (self._clock.monotonic_ns() - since_ns) / 1e9
            self.wait_times.add(waiting.request.queue, outcome, waited_s)

    def _may_be_decided(self, waiting: WaitingRequest) -> bool:
        """Return True if the last cycle reached its time limit, so that another one may decide about the request."""
        with self._lock:
            open_ = not (self._closed or waiting.answer.done() or waiting.id in self._starts)
            return open_ and self._tracker.scheduler.unfinished

    def _decide(self) -> list[tuple[WaitingRequest, Start]]:
        """Return the starts that can be granted now."""
        devices, foreign = _read_devices(self._agent)
        if not self._tracker.update_devices(devices, self._agent.records, foreign=foreign):
            self._starts.clear()
        for decision in self._tracker.decide():
            if isinstance(decision, Stop):
                self._evict(decision)
            elif isinstance(decision, Start) and self._waiting.get(decision.id):  # else it ran, and is evicted
                self._starts.add(decision)
        ready = self._starts.take_ready(lambda other: self._agent.record(other) is None)
        return [(self._waiting[start.id], start) for start in ready]

    def _evict(self, stop: Stop) -> None:
        """Carry out a decided stop: end the allocation, or cancel its start if that was not carried out yet."""
        if self._starts.remove(stop.id) or self._starts.overtake(stop):
            return
        self._tracker.remove(stop.id)
        with bound_contextvars(uid=getattr(self._agent.record(stop.id), "uid", "")):
            self._agent.end(
                stop.id,
                reason=stop.reason,
                explanation=Message("its devices were needed for {by}", by=RequestName(stop.by)),
            )

    def _grant(self, waiting: WaitingRequest, start: Start) -> bool:
        """Grant a decided request; return True if another pass may decide about other requests as a result."""
        record = record_of(waiting, start.placement, because=start.because, now_s=self._clock.now_s())
        try:
            with self._granting(record):
                granted = self._agent.grant(record)
        except Exception as error:  # the requester gets every error as the answer
            return self._grant_failed(waiting, start, error)
        with self._lock:
            overtaken = self._starts.end_grant(waiting.id)
            self._starts.remove(waiting.id)
            joined = True
            if overtaken is None:
                self._tracker.set_running(granted.record)
                joined = self._waiting.remove(waiting)
            elif waiting.answer.done():
                self._remove(waiting)
            else:
                self._waiting.rename(waiting, new_id())
        if overtaken is not None:  # the grant was not reported: the request waits again with its age
            self._agent.end(
                granted.record.id,
                reason=overtaken.reason,
                explanation=Message(LOST_PLACE, by=RequestName(overtaken.by)),
            )
        elif not waiting.resolve(granted):
            self._agent.end(waiting.id, reason="cancelled", explanation=waiting.withdrawn)
        return joined

    def _grant_failed(self, waiting: WaitingRequest, start: Start, error: Exception) -> bool:
        reason = error.reason if isinstance(error, CalabashError) else None
        with self._lock:
            overtaken = self._starts.end_grant(waiting.id)
            if reason in NOT_YET and not waiting.withdrawn:
                if overtaken is not None:
                    return False  # it was overtaken and waits again with its age
                if reason is Reason.UNHEALTHY or any(part.start >= 0 for part in start.placement.slices):
                    self._tracker.unbind(waiting.id)  # another device, or another place on this one, may be free
                    return self._starts.note_refusal(start)
                self._starts.retry(start, held=_why_held(error) if reason is Reason.FABRIC_HELD else "")
                return False
            self._remove(waiting)
            if waiting.gang_key is not None:
                self._abandon(waiting.gang_key, waiting.id)
        waiting.resolve(error)
        return True

    def _abandon(self, key: GangKey, failed: AllocationId) -> None:
        """End all members of a gang, because the member ``failed`` could not be granted: no member may start alone."""
        for record in _granted_of(key, self._agent.records()):
            self._agent.end(
                record.id,
                reason=Reason.GANG_INCOMPLETE,
                explanation=Message("{failed} was not granted", failed=RequestName(failed)),
            )
        for other in self._waiting.members(key):
            if self._starts.remove(other.id):
                self._remove(other)
                message = Message(
                    "member {failed} of gang {gang} was not granted", failed=RequestName(failed), gang=key[-1]
                )
                other.resolve(CalabashError(message, reason=Reason.GANG_INCOMPLETE, hint="try again"))

    def _remove(self, waiting: WaitingRequest) -> None:
        """Remove a request from the queue order, from the decided starts and from the waiting requests."""
        self._starts.remove(waiting.id)
        self._tracker.remove(waiting.id)
        self._waiting.remove(waiting)


def _granted_of(key: GangKey, records: Sequence[AllocationRecord]) -> list[AllocationRecord]:
    """Return the members of a gang that have been granted and do not run yet."""
    return [r for r in records if r.state is AllocationState.GRANTED and gang_key(r.uid, r.request) == key]


def _why_held(error: Exception) -> Text:
    """Return the text of the error, with its hint on a second line."""
    if not isinstance(error, CalabashError):
        return str(error)
    if not error.hint:
        return error.message_text
    return Message("{message}\nhint: {hint}", message=error.message_text, hint=error.hint_text)


def _read_devices(agent: NodeAgent) -> tuple[list[Device], dict[DeviceUuid, UnmanagedDeviceMemory]]:
    """Return all devices, and the memory that unmanaged processes use on each.

    A device that shall get no new allocations is returned as DRAINING. This is so if the agent has closed it because of
    an unmanaged process or an orphaned allocation (one with processes but without a journal entry), or if it is still
    used in another mode than the one to which an administrator has pinned it.
    """
    found = agent.devices()
    devices = [
        d.device if d.takes_work and not _leaves_its_mode(d) else replace(d.device, health=Health.DRAINING)
        for d in found
    ]
    return devices, {d.device.uuid: _unmanaged_memory(d) for d in found if d.foreign_mib}


def _leaves_its_mode(state: DeviceSnapshot) -> bool:
    """Return True if the device is still used in another mode than the one to which an administrator has pinned it."""
    kept = state.device.pinned
    return bool(kept) and state.mode is not None and kept not in (state.mode, mode_of_device(state.mode))


def _unmanaged_memory(state: DeviceSnapshot) -> UnmanagedDeviceMemory:
    """Return the unmanaged memory of a device, and which processes would have to end to free it."""
    more = f" and {len(state.unmanaged) - 3} more" if len(state.unmanaged) > 3 else ""
    remedy = Message(
        "end the processes without an allocation on device {device}: {processes}{more}",
        device=state.device.index,
        processes=joined(
            "; ", (Message("{process}", process=describe_process(found)) for found in state.unmanaged[:3])
        ),
        more=more,
    )
    return UnmanagedDeviceMemory(memory_mib=state.foreign_mib, remedy=remedy)
