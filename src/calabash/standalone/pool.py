"""The pool: requests in, allocations out, and who may touch what.

Which request goes where is the scheduler's decision; the pool tells it what happened and carries its decisions out. A
request that does not fit waits as long as its asker wants, and is tried again whenever room may have appeared. A grant
is checked once more against the book of what is really held, so the books of the scheduler can be wrong without
anything being promised twice. Everything here is synchronous and safe for threads; the HTTP layer calls it from
worker threads and awaits the future of a waiting request.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import structlog

from calabash.agent.node import NodeAgent
from calabash.binder.local import LocalScheduler, Start, Stop
from calabash.model.allocation import AllocationRecord, AllocationState, QueueRecord
from calabash.model.device import DeviceUuid, Health
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import DEFAULT_QUEUE, AllocationId, GpuRequest, Placement, Slice
from calabash.scenario import dump_scenario
from calabash.sched import UNLIMITED, Amount, Options, QueueSpec
from calabash.seams.clock import Clock
from calabash.seams.host.processes import Peer, identify, owner, user_name
from calabash.seams.store import Store
from calabash.sharing.protocol import Edits, Misfit
from calabash.sharing.registry import fits
from calabash.standalone.refusals import Refusal, refusal

PENDING_MAX = 10_000
# Anybody may name any priority on one machine, so priority orders the line and never ends a running program. What an
# administrator has guaranteed to a queue is taken back from those who borrowed it.
OPTIONS = Options(preempt=False, reclaim=True, reclaim_fair_share=False)

log = structlog.get_logger(__name__)
_ALPHABET = "abcdefghjkmnpqrstuvwxyz23456789"


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """What the asker gets: its allocation and the edits its program needs."""

    record: AllocationRecord
    edits: Edits


@dataclass(slots=True)
class Pending:
    """A request that waits; ``answer`` is resolved with Granted or CalabashError."""

    id: AllocationId
    request: GpuRequest
    peer: Peer
    command: tuple[str, ...]
    created_at: float
    answer: Future[Granted] = field(default_factory=Future)


def new_id() -> AllocationId:
    """Short enough to type, long enough never to meet again: 31^8."""
    return AllocationId("a" + "".join(secrets.choice(_ALPHABET) for _ in range(8)))


class Pool:
    """The pool of this machine."""

    def __init__(self, *, agent: NodeAgent, store: Store, clock: Clock, owner_uid: int) -> None:
        self.agent = agent
        self.store = store
        self._clock = clock
        self._owner_uid = owner_uid
        self._lock = threading.RLock()
        self._pending: dict[AllocationId, Pending] = {}  # not answered yet
        self._starts: dict[AllocationId, Start] = {}  # decided, and not yet granted
        self._running: set[AllocationId] = set()  # granted, as far as the scheduler knows
        self._health: dict[DeviceUuid, Health] = {}
        self._closed = False
        self._line = self._new_line()
        agent.changed = self.schedule

    # -- asking ------------------------------------------------------------------------------------------------

    def submit(self, request: GpuRequest, *, peer: Peer, command: Sequence[str], wait: bool) -> Pending:
        """Join the line and try at once.

        Raises CalabashError when it can never be granted, or when it cannot be granted now and does not want to wait.
        """
        pending = Pending(new_id(), request, peer, tuple(command), self._clock.now_s())
        with self._lock:
            if self._closed:
                raise CalabashError("the pool is going down", reason=Reason.POOL_DOWN, hint="start it: calabash up")
            if len(self._pending) >= PENDING_MAX:
                raise CalabashError(f"{PENDING_MAX} requests wait already", reason=Reason.CONFLICT, hint="try later")
            self._line.submit(pending.id, request, submitted_at_s=self._now_s())
            self._pending[pending.id] = pending
            self.schedule()
            if not pending.answer.done() and pending.id not in self._starts:
                told = self._refusal(pending)
                if not wait:
                    self._forget(pending.id)
                    raise told.error()
                self.agent.event("pending", reason=told.reason, allocation=pending.id, message=told.message)
        return pending

    def cancel(self, pending: Pending, *, why: str) -> bool:
        """The asker is gone or tired of waiting. False when it has been answered already."""
        with self._lock:
            if pending.answer.done():
                return False
            self._forget(pending.id)
            pending.answer.cancel()
        self.agent.event("cancelled", allocation=pending.id, message=why)
        self.schedule()
        return True

    def give_back(self, pending: Pending, *, why: str) -> None:
        """Nobody is there to take what it was granted."""
        self.agent.end(pending.id, reason="cancelled", explanation=why)

    def schedule(self) -> None:
        """Let the scheduler decide and carry its decisions out as far as that is possible now."""
        with self._lock:
            if self._closed:
                return
            self._follow()
            for decision in self._line.cycle(self._now_s()):
                if isinstance(decision, Start):
                    self._starts[decision.id] = decision
                elif isinstance(decision, Stop):
                    self._evict(decision)
            for start in list(self._starts.values()):
                if start.id in self._starts:
                    self._carry_out(start)

    def _follow(self) -> None:
        """Tell the scheduler what happened since: health, and what is gone."""
        for device in self.agent.inventory.devices():
            if device.uuid not in {d.uuid for d in self._line.devices if d.memory_mib == device.memory_mib}:
                self._line = self._new_line()  # a card that was lost when the pool started has been seen
                return
            health = Health.DRAINING if self.agent.orphaned(device.uuid) else device.health
            if self._health.get(device.uuid) is not health:
                self._line.set_health(device.uuid, health)
                self._health[device.uuid] = health
        for allocation in [a for a in self._running if self.agent.book.get(a) is None]:
            self._running.discard(allocation)
            self._line.finished(allocation)

    def _evict(self, stop: Stop) -> None:
        """A program cannot be put back in line: it is ended, and whoever started it decides what then."""
        self._line.finished(stop.id)
        self._running.discard(stop.id)
        if self._starts.pop(stop.id, None) is None:
            self.agent.end(stop.id, reason=stop.reason, explanation=f"its devices were needed for {stop.by}")
        else:
            pending = self._pending.pop(stop.id)
            message = f"{stop.id} lost its place to {stop.by}"
            pending.answer.set_exception(CalabashError(message, reason=stop.reason, hint="try again with --wait"))

    def _carry_out(self, start: Start) -> None:
        """Grant it, unless what must go first is still there."""
        pending = self._pending[start.id]
        if any(self.agent.book.get(other) is not None for other in start.after):
            return
        with self.agent.lock:
            answers = self._asked_again(start, pending.request)
            misfits = [a for a in answers if isinstance(a, Misfit)]
            if not misfits:
                self._grant(pending, start)
                return
        if any(m.reason is Reason.UNHEALTHY for m in misfits):
            self._starts.pop(start.id)
            self._line.finished(start.id)
            try:
                self._line.submit(start.id, pending.request, submitted_at_s=self._now_s())
            except CalabashError as error:
                del self._pending[start.id]
                pending.answer.set_exception(error)

    def _asked_again(self, start: Start, request: GpuRequest) -> list[Slice | Misfit]:
        """Whether the devices really have the room: what was evicted may still be ending."""
        states = {s.device.uuid: s for s in self.agent.devices()}
        return [
            fits(states[p.device].device, states[p.device].mode, states[p.device].held, request)
            for p in start.placement.slices
        ]

    def _grant(self, pending: Pending, start: Start) -> None:
        del self._starts[pending.id]
        del self._pending[pending.id]
        try:
            granted = self.agent.grant(self._record(pending, start.placement))
        except Exception as error:  # whatever it is, its asker must hear of it
            self._line.finished(pending.id)
            pending.answer.set_exception(error)
            self._abandon_gang(pending)
            return
        self._running.add(pending.id)
        pending.answer.set_result(Granted(record=granted.record, edits=granted.edits))

    def _abandon_gang(self, failed: Pending) -> None:
        """One member could not be granted, so none of its gang starts."""
        gang = failed.request.gang
        if not gang:
            return
        key = (failed.request.queue, gang)
        for record in self.agent.book.records():
            if (record.request.queue, record.request.gang) == key and record.state is AllocationState.GRANTED:
                self.agent.end(record.id, reason=Reason.GANG_INCOMPLETE, explanation=f"{failed.id} was not granted")
        for other in [p for p in self._pending.values() if (p.request.queue, p.request.gang) == key]:
            if self._starts.pop(other.id, None) is not None:
                del self._pending[other.id]
                self._line.finished(other.id)
                message = f"member {failed.id} of gang {gang} was not granted"
                other.answer.set_exception(CalabashError(message, reason=Reason.GANG_INCOMPLETE, hint="try again"))

    def _record(self, pending: Pending, placement: Placement) -> AllocationRecord:
        client = identify(pending.peer.pid)
        return AllocationRecord(
            id=pending.id,
            state=AllocationState.GRANTED,
            request=pending.request,
            placement=placement,
            user=user_name(pending.peer.uid),
            uid=pending.peer.uid,
            client_pid=client.pid if client else 0,
            client_start_time=client.start_time if client else 0,
            command=pending.command,
            created_at=pending.created_at,
            granted_at=self._clock.now_s(),
        )

    def _forget(self, allocation: AllocationId) -> None:
        """It leaves the line."""
        self._pending.pop(allocation, None)
        self._starts.pop(allocation, None)
        self._line.finished(allocation)

    def _refusal(self, pending: Pending) -> Refusal:
        with self.agent.lock:
            states = self.agent.devices()
        return refusal(self._line.why(pending.id, self._now_s()), states, pending.request)

    def bound(self, pending: Pending) -> bool:
        """Whether it has its place and only waits for others to leave it."""
        return pending.id in self._starts

    # -- the scheduler -----------------------------------------------------------------------------------------

    def _now_s(self) -> float:
        return self._clock.monotonic_ns() / 1e9

    def _new_line(self) -> LocalScheduler:
        """A scheduler that knows what is held and who waits."""
        devices = self.agent.inventory.devices()
        line = LocalScheduler(self.agent.node, devices, self._queue_specs(self.store.queues()), options=OPTIONS)
        self._health = {d.uuid: d.health for d in devices}
        self._running = set()
        self._starts = {}
        behind_s = self._clock.now_s() - self._now_s()
        for record in self.agent.book.records():
            try:
                started_at_s = record.granted_at - behind_s
                line.adopt(record.id, record.request, record.placement, started_at_s=started_at_s)
            except (CalabashError, KeyError) as error:
                # Its devices or its queue are gone. It runs on; grants are checked against the book as well.
                log.warning("the scheduler does not know this allocation", allocation=record.id, error=str(error))
            else:
                self._running.add(record.id)
        for pending in sorted(self._pending.values(), key=lambda p: p.created_at):
            try:
                line.submit(pending.id, pending.request, submitted_at_s=pending.created_at - behind_s)
            except CalabashError as error:
                del self._pending[pending.id]
                pending.answer.set_exception(error)
        return line

    def _queue_specs(self, records: Sequence[QueueRecord]) -> list[QueueSpec]:
        known = {record.name: record for record in records}
        known.setdefault(DEFAULT_QUEUE, QueueRecord(name=DEFAULT_QUEUE))
        return [
            QueueSpec(
                name=record.name,
                parent=record.parent,
                deserved=Amount(gpu_milli=round(record.deserved * 1000)),
                limit=UNLIMITED if record.limit is None else UNLIMITED._replace(gpu_milli=round(record.limit * 1000)),
                over_quota_weight=record.weight,
            )
            for record in known.values()
        ]

    # -- holding -----------------------------------------------------------------------------------------------

    def started(self, allocation: AllocationId, *, pid: int, peer: Peer) -> AllocationRecord:
        """The program of an allocation is about to run; only one of the asker's own processes can be it."""
        self._require_owner(self._held(allocation), peer)
        program = identify(pid)
        if program is not None and owner(program) != peer.uid and peer.uid != 0:
            raise CalabashError(f"process {pid} does not belong to {user_name(peer.uid)}", reason=Reason.NOT_PERMITTED)
        if program is None:
            raise CalabashError(f"process {pid} has ended", reason=Reason.NOT_FOUND)
        return self.agent.enter(allocation, program)

    def release(self, allocation: AllocationId, *, peer: Peer, force: bool) -> None:
        """Give it back, or leave the line. Raises CONFLICT when its programs run and ``force`` is not given."""
        with self._lock:
            pending = self._pending.get(allocation)
        if pending is not None:
            self._require_user(pending.peer.uid, allocation, peer)
            with self._lock:
                if not pending.answer.done():
                    self._forget(allocation)
                    message = f"request {allocation} was cancelled by {user_name(peer.uid)}"
                    pending.answer.set_exception(CalabashError(message, reason=Reason.CONFLICT))
            return
        record = self._held(allocation)
        self._require_owner(record, peer)
        programs = self.agent.processes_of(allocation)
        others = [p for p in programs if p.pid != peer.pid]
        if others and not force:
            raise CalabashError(
                f"{allocation} is used by {len(others)} programs (pid {', '.join(str(p.pid) for p in others[:5])})",
                reason=Reason.CONFLICT,
                hint="end them, or release it with force",
            )
        by = user_name(peer.uid)
        # A program that gives its own slice back is not to be killed for it.
        self.agent.end(allocation, reason="released", explanation=f"released by {by}", gently=not others and not force)
        self.agent.sweep()

    def close(self, *, force: bool) -> None:
        """Take no more requests. Raises CONFLICT while programs run and ``force`` is not given."""
        with self._lock:
            running = self.agent.book.records()
            if running and not force:
                held = f"{len(running)} allocations are" if len(running) > 1 else "1 allocation is"
                raise CalabashError(
                    f"{held} held: {', '.join(r.id for r in running[:5])}",
                    reason=Reason.CONFLICT,
                    hint="wait for them, or `calabash down --force` ends them",
                )
            self._closed = True
            waiting = list(self._pending.values())
            self._pending.clear()
        for pending in waiting:
            with contextlib.suppress(Exception):
                pending.answer.set_exception(CalabashError("the pool went down", reason=Reason.POOL_DOWN))
        for record in running:
            self.agent.end(record.id, reason="shutdown", explanation="the pool was taken down with force")

    # -- looking -----------------------------------------------------------------------------------------------

    def pending(self) -> list[Pending]:
        """Who waits, in the order of arrival."""
        with self._lock:
            return sorted(self._pending.values(), key=lambda p: p.created_at)

    def why(self, allocation: AllocationId) -> dict[str, Any]:
        """Why a request waits, or what became of it."""
        with self._lock:
            pending = self._pending.get(allocation)
            if pending is not None and allocation not in self._starts:
                told = self._refusal(pending)
                return {
                    "id": allocation,
                    "state": "pending",
                    "reason": told.reason,
                    "explanation": told.message,
                    "details": list(told.details),
                    "suggestions": list(told.suggestions),
                }
            if pending is not None:
                after = ", ".join(self._starts[allocation].after) or "others"
                return {
                    "id": allocation,
                    "state": "pending",
                    "reason": Reason.NO_CAPACITY,
                    "explanation": f"it has its place and waits for {after} to leave it",
                    "details": [],
                    "suggestions": [],
                }
        record = self.agent.book.get(allocation) or self.store.allocation(allocation)
        if record is None:
            raise not_found(allocation)
        return {
            "id": allocation,
            "state": record.state,
            "reason": record.reason,
            "explanation": record.explanation or f"{record.state} in mode {record.placement.mode}",
            "details": [],
            "suggestions": [],
        }

    def scenario(self) -> str:
        """What the scheduler knows now as a scenario file, to be replayed elsewhere."""
        with self._lock:
            snapshot = self._line.scheduler.snapshot()
        return dump_scenario(snapshot, rule=f"the pool of {self.agent.node} as it was")

    # -- queues ------------------------------------------------------------------------------------------------

    def queues(self) -> list[dict[str, Any]]:
        """All queues with what they hold and what waits in them, in devices."""
        with self._lock:
            known = {q.name: q for q in self.store.queues()}
            known.setdefault(DEFAULT_QUEUE, QueueRecord(name=DEFAULT_QUEUE))
            tree = self._line.scheduler.tree
            return [
                {
                    "name": q.name,
                    "parent": q.parent,
                    "deserved": q.deserved,
                    "limit": q.limit,
                    "weight": q.weight,
                    "allocated": tree.used(q.name).gpu_milli / 1000,
                    "pending": tree.waiting(q.name).gpu_milli / 1000,
                }
                for q in sorted(known.values(), key=lambda q: q.name)
            ]

    def put_queue(self, record: QueueRecord, *, peer: Peer) -> None:
        """Create or change; only the pool's owner and root may."""
        self.require_admin(peer, "change queues")
        with self._lock:
            before = self.store.queues()
            self._line.set_queues(self._queue_specs([*(q for q in before if q.name != record.name), record]))
            self._or_back(lambda: self.store.put_queue(record), before)
        self.schedule()

    def delete_queue(self, name: str, *, peer: Peer) -> None:
        """Delete an empty one; only the pool's owner and root may."""
        self.require_admin(peer, "change queues")
        with self._lock:
            before = self.store.queues()
            if name not in {q.name for q in before}:
                hint = "see `calabash queue list`"
                raise CalabashError(f"there is no queue {name}", reason=Reason.NOT_FOUND, hint=hint)
            self._line.set_queues(self._queue_specs([q for q in before if q.name != name]))
            self._or_back(lambda: self.store.delete_queue(name), before)

    def _or_back(self, write: Callable[[], object], before: Sequence[QueueRecord]) -> None:
        """The scheduler's tree and the stored one stay equal when the write fails."""
        try:
            write()
        except CalabashError:
            self._line.set_queues(self._queue_specs(before))
            raise

    # -- permission --------------------------------------------------------------------------------------------

    def require_admin(self, peer: Peer, what: str) -> None:
        """Raises NOT_PERMITTED for everybody but root and the pool's owner."""
        if peer.uid not in {0, self._owner_uid}:
            owner = user_name(self._owner_uid)
            raise CalabashError(
                f"user {user_name(peer.uid)} may not {what}",
                reason=Reason.NOT_PERMITTED,
                hint=f"ask {owner}, who owns the pool" + ("" if self._owner_uid == 0 else ", or root"),
            )

    def _require_owner(self, record: AllocationRecord, peer: Peer) -> None:
        self._require_user(record.uid, record.id, peer)

    def _require_user(self, uid: int, allocation: AllocationId, peer: Peer) -> None:
        if peer.uid != uid:
            self.require_admin(peer, f"touch {allocation}, which belongs to {user_name(uid)}")

    def _held(self, allocation: AllocationId) -> AllocationRecord:
        record = self.agent.book.get(allocation)
        if record is None:
            raise not_found(allocation)
        return record


def not_found(allocation: str) -> CalabashError:
    """There is no such allocation now."""
    return CalabashError(
        f"there is no allocation {allocation!r} held or waiting", reason=Reason.NOT_FOUND, hint="see `calabash ps`"
    )
