"""Waiting requests of one machine: all unanswered requests, and which of them are in the scheduler's queue order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from calabash.binder.local.admission import Admission
from calabash.binder.local.requests import GangKey, WaitingRequest
from calabash.binder.local.tracking import Tracker
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import AllocationId
from calabash.sched import Explanation

WAITING_MAX = 20_000


class WaitingRequests:
    """Waiting requests. Admitted requests are passed to the scheduler through ``tracker``. The caller holds a lock.

    Args:
        window: most requests of one user and queue that are in the queue order at a time.
    """

    def __init__(self, tracker: Tracker, *, window: int) -> None:
        self._tracker = tracker
        self._admission = Admission(window)
        self._waiting: dict[AllocationId, WaitingRequest] = {}

    def __getitem__(self, allocation: AllocationId) -> WaitingRequest:
        return self._waiting[allocation]

    def get(self, allocation: AllocationId) -> WaitingRequest | None:
        return self._waiting.get(allocation)

    def all(self) -> list[WaitingRequest]:
        """Return all waiting requests, in the order of arrival."""
        return list(self._waiting.values())

    def members(self, key: GangKey) -> list[WaitingRequest]:
        """Return the waiting members of a gang."""
        return [w for w in self._waiting.values() if w.gang_key == key]

    def explain_wait(self, waiting: WaitingRequest) -> Explanation | None:
        """Return a text on the number of the user's requests that are ahead; None if this one is in the queue order."""
        before = self._admission.count_before(waiting)
        if before is None:
            return None
        mine = f"user {waiting.requester.user} in queue {waiting.request.queue}"
        return Explanation(reason=Reason.USER_LIMIT, summary=f"{before} requests of {mine} go first")

    def add(self, waiting: WaitingRequest, *, at_once: bool) -> bool:
        """Add a request; return True if it is in the queue order now. ``at_once`` ignores the window.

        Raises CalabashError if the request can never be granted, or CONFLICT if WAITING_MAX requests wait.
        """
        if len(self._waiting) >= WAITING_MAX:
            raise CalabashError(f"{WAITING_MAX} requests wait already", reason=Reason.CONFLICT, hint="try later")
        self._waiting[waiting.id] = waiting
        admitted = self._admission.admit(waiting, at_once=at_once)
        if admitted:
            try:
                self._tracker.submit(waiting)
            except CalabashError:
                self.remove(waiting)
                raise
        return admitted

    def remove(self, waiting: WaitingRequest) -> bool:
        """Remove an answered request; return True if other requests were admitted instead."""
        self._waiting.pop(waiting.id, None)
        return self._submit_admitted(self._admission.remove(waiting))

    def _submit_admitted(self, joined: list[WaitingRequest]) -> bool:
        for other in joined:  # grows during the iteration
            try:
                self._tracker.submit(other)
            except CalabashError as error:
                self._waiting.pop(other.id, None)
                other.resolve(error)
                joined += self._admission.remove(other)
        return bool(joined)

    def move(
        self, waiting: WaitingRequest, queue: str, *, decided: Callable[[AllocationId], bool]
    ) -> list[WaitingRequest]:
        """Move a request and the other members of its gang to another queue; return the moved requests.

        All keep their ages. Raises CONFLICT if one of them has been answered or if ``decided`` returns True for it, and
        CalabashError if the queue refuses one; then all stay in their old queue.
        """
        moved = self.members(waiting.gang_key) if waiting.gang_key is not None else [waiting]
        placed = [w.id for w in moved if decided(w.id) or w.answer.done()]
        if waiting.id not in self._waiting or placed:
            name = placed[0] if placed else waiting.id
            raise CalabashError(
                f"{name} has its devices already", reason=Reason.CONFLICT, hint="only waiting requests can be moved"
            )
        before = [(w, w.request, self._tracker.submitted_at_s(w.id)) for w in moved]
        for member in moved:
            self._leave_order(member)
        try:
            for member, request, since_s in before:
                member.request = replace(request, queue=queue)
                self._join_order(member, since_s)
        except CalabashError:
            for member, request, since_s in before:
                self._leave_order(member)
                member.request = request
                self._join_order(member, since_s, at_once=since_s is not None)
            raise
        return moved

    def rename(self, waiting: WaitingRequest, name: AllocationId) -> None:
        """Change the ID of a waiting request, which keeps its age.

        The new ID is needed because a grant of this request was ended before it was reported to the requester, and that
        grant is journalled under the old ID.
        """
        since_s = self._tracker.submitted_at_s(waiting.id)
        self._leave_order(waiting)
        del self._waiting[waiting.id]
        waiting.id = name
        self._waiting[name] = waiting
        try:
            self._join_order(waiting, since_s, at_once=since_s is not None)
        except CalabashError as error:
            self.remove(waiting)
            waiting.resolve(error)

    def _leave_order(self, waiting: WaitingRequest) -> None:
        self._tracker.remove(waiting.id)
        self._submit_admitted(self._admission.remove(waiting))

    def _join_order(self, waiting: WaitingRequest, since_s: float | None, *, at_once: bool = False) -> None:
        if self._admission.admit(waiting, at_once=at_once):
            self._tracker.submit(waiting, since_s=since_s)

    def clear(self) -> list[WaitingRequest]:
        """Remove and return all waiting requests."""
        waiting = self.all()
        self._waiting.clear()
        return waiting
