"""The pool: requests in, allocations out, and who may touch what.

A request that fits is granted at once; one that does not waits as long as its asker wants, and is tried again
whenever room may have appeared. Everything here is synchronous and safe for threads; the HTTP layer calls it from
worker threads and awaits the future of a waiting request.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

from calabash.agent.node import NodeAgent
from calabash.model.device import Health
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import AllocationId, GpuRequest, Placement
from calabash.seams.clock import Clock
from calabash.seams.host.processes import Peer, identify, user_name
from calabash.seams.store import AllocationRecord, AllocationState, QueueRecord, Store
from calabash.sharing.protocol import Edits
from calabash.sharing.registry import mode_for
from calabash.standalone.bestfit import Candidate, Refusal, place

PENDING_MAX = 10_000
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
    refusal: Refusal | None = None


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
        self._pending: dict[AllocationId, Pending] = {}
        self._closed = False
        agent.changed = self.schedule

    # -- asking ------------------------------------------------------------------------------------------------

    def submit(self, request: GpuRequest, *, peer: Peer, command: Sequence[str], wait: bool) -> Pending:
        """Join the line and try at once. Raises CalabashError when it cannot be granted and does not want to wait, or
        when no wait can help."""
        mode_for(request)  # unknown modes and impossible isolation are refused before anything else
        pending = Pending(new_id(), request, peer, tuple(command), self._clock.now_s())
        with self._lock:
            if self._closed:
                raise CalabashError("the pool is going down", reason=Reason.POOL_DOWN, hint="start it: calabash up")
            if len(self._pending) >= PENDING_MAX:
                raise CalabashError(f"{PENDING_MAX} requests wait already", reason=Reason.CONFLICT, hint="try later")
            self._pending[pending.id] = pending
            self.schedule()
            if not pending.answer.done():
                refusal = pending.refusal
                if refusal is not None and (not wait or refusal.hopeless):
                    del self._pending[pending.id]
                    raise refused(refusal, request)
                self.agent.event("pending", allocation=pending.id, message=refusal.message if refusal else "")
        return pending

    def cancel(self, pending: Pending, *, why: str) -> None:
        """The asker is gone or tired of waiting. A grant that crossed it is taken back."""
        with self._lock:
            waiting = self._pending.pop(pending.id, None) is not None
        if waiting:
            pending.answer.cancel()
            self.agent.event("cancelled", allocation=pending.id, message=why)
        elif pending.answer.done() and not pending.answer.cancelled() and pending.answer.exception() is None:
            self.agent.end(pending.id, reason="cancelled", explanation=why)

    def schedule(self) -> None:
        """Try everybody who waits, highest priority first, then oldest."""
        with self._lock:
            for pending in sorted(self._pending.values(), key=lambda p: (-p.request.priority, p.created_at)):
                if pending.answer.done():
                    self._pending.pop(pending.id, None)
                    continue
                outcome = self._try(pending)
                if isinstance(outcome, Refusal):
                    pending.refusal = outcome
                    continue
                self._pending.pop(pending.id, None)
                if isinstance(outcome, CalabashError):
                    pending.answer.set_exception(outcome)
                else:
                    pending.answer.set_result(outcome)

    def _try(self, pending: Pending) -> Granted | Refusal | CalabashError:
        with self.agent.lock:
            placement = place(self.agent.node, self._candidates(), pending.request)
            if isinstance(placement, Refusal):
                return placement
            try:
                return self._grant(pending, placement)
            except CalabashError as error:
                return error

    def _candidates(self) -> list[Candidate]:
        found = []
        for state in self.agent.devices():
            device = state.device
            if self.agent.orphaned(device.uuid):
                device = replace(device, health=Health.DRAINING)
            found.append(Candidate(device=device, mode=state.mode, held=state.held))
        return found

    def _grant(self, pending: Pending, placement: Placement) -> Granted:
        client = identify(pending.peer.pid)
        record = AllocationRecord(
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
        granted, edits = self.agent.grant(record)
        return Granted(record=granted, edits=edits)

    # -- holding -----------------------------------------------------------------------------------------------

    def started(self, allocation: AllocationId, *, peer: Peer) -> AllocationRecord:
        """The program of an allocation is about to run."""
        self._require_owner(self._held(allocation), peer)
        record = self.agent.started(allocation)
        if record is None:
            raise not_found(allocation)
        return record

    def release(self, allocation: AllocationId, *, peer: Peer, force: bool) -> None:
        """Give it back, or leave the line. Raises CONFLICT when its programs run and ``force`` is not given."""
        with self._lock:
            pending = self._pending.get(allocation)
        if pending is not None:
            self._require_user(pending.peer.uid, allocation, peer)
            error = CalabashError(f"request {allocation} was cancelled", reason=Reason.CONFLICT)
            with self._lock:
                if self._pending.pop(allocation, None) is not None:
                    pending.answer.set_exception(error)
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
        self.agent.end(allocation, reason="released", explanation=f"released by {by}")
        self.agent.sweep()

    def close(self, *, force: bool) -> None:
        """Take no more requests. Raises CONFLICT while programs run and ``force`` is not given."""
        with self._lock:
            running = self.agent.book.records()
            if running and not force:
                raise CalabashError(
                    f"{len(running)} allocations are held: {', '.join(r.id for r in running[:5])}",
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
        if pending is not None and pending.refusal is not None:
            refusal = pending.refusal
            return {
                "id": allocation,
                "state": "pending",
                "reason": refusal.reason,
                "explanation": refusal.message,
                "details": [f"device {index}: {misfit.message}" for index, misfit in refusal.devices],
                "suggestions": [hint_for(refusal.reason)],
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

    # -- queues ------------------------------------------------------------------------------------------------

    def queues(self) -> list[dict[str, Any]]:
        """All queues with what they hold and what waits in them, in devices."""
        known = {q.name: q for q in self.store.queues()}
        known.setdefault("default", QueueRecord(name="default"))
        held: dict[str, float] = {}
        for record in self.agent.book.records():
            amount = sum(part.core_percent for part in record.placement.slices) / 100
            held[record.request.queue] = held.get(record.request.queue, 0.0) + amount
        waiting: dict[str, float] = {}
        for pending in self.pending():
            amount = pending.request.count * pending.request.core_percent / 100
            waiting[pending.request.queue] = waiting.get(pending.request.queue, 0.0) + amount
        return [
            {
                "name": q.name,
                "parent": q.parent,
                "deserved": q.deserved,
                "limit": q.limit,
                "weight": q.weight,
                "allocated": round(held.get(q.name, 0.0), 2),
                "pending": round(waiting.get(q.name, 0.0), 2),
            }
            for q in sorted(known.values(), key=lambda q: q.name)
        ]

    def put_queue(self, record: QueueRecord, *, peer: Peer) -> None:
        """Create or change; only the pool's owner and root may."""
        self._require_admin(peer, "change queues")
        self.store.put_queue(record)
        self.schedule()

    def delete_queue(self, name: str, *, peer: Peer) -> None:
        """Delete; only the pool's owner and root may."""
        self._require_admin(peer, "change queues")
        if not self.store.delete_queue(name):
            raise CalabashError(f"there is no queue {name}", reason=Reason.NOT_FOUND, hint="see `calabash queue list`")

    # -- permission --------------------------------------------------------------------------------------------

    def require_admin(self, peer: Peer, what: str) -> None:
        """Raises NOT_PERMITTED for everybody but root and the pool's owner."""
        self._require_admin(peer, what)

    def _require_admin(self, peer: Peer, what: str) -> None:
        if peer.uid not in {0, self._owner_uid}:
            raise CalabashError(
                f"user {user_name(peer.uid)} may not {what}",
                reason=Reason.NOT_PERMITTED,
                hint=f"ask root or {user_name(self._owner_uid)}, who owns the pool",
            )

    def _require_owner(self, record: AllocationRecord, peer: Peer) -> None:
        self._require_user(record.uid, record.id, peer)

    def _require_user(self, uid: int, allocation: AllocationId, peer: Peer) -> None:
        if peer.uid != uid:
            self._require_admin(peer, f"touch {allocation}, which belongs to {user_name(uid)}")

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


def refused(refusal: Refusal, request: GpuRequest) -> CalabashError:
    """Why the asker does not get it."""
    del request
    return CalabashError(refusal.message, reason=refusal.reason, hint=hint_for(refusal.reason))


_HINTS = {
    Reason.TOO_LARGE: "ask for less: no device of this pool could ever hold it",
    Reason.NO_DEVICES: "ask for fewer devices",
    Reason.SELECTOR_MISMATCH: "see `calabash smi` for the models there are",
    Reason.MODE_CONFLICT: "wait until the device is idle, or ask for the mode it is in",
    Reason.UNHEALTHY: "see `calabash smi` and `calabash doctor`",
}


def hint_for(reason: Reason) -> str:
    """What to try next."""
    return _HINTS.get(reason, "wait for room with --wait 60s, or ask for less; see `calabash smi`")
