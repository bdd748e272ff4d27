"""Who waits: all requests that are not answered, and which of them stand in the scheduler's queue order."""

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
    """What waits, and the scheduler told of it; the caller holds a lock."""

    def __init__(self, tracker: Tracker, *, window: int) -> None:
        self._tracker = tracker
        self._admission = Admission(window)
        self._waiting: dict[AllocationId, WaitingRequest] = {}

    def __getitem__(self, allocation: AllocationId) -> WaitingRequest:
        return self._waiting[allocation]

    def get(self, allocation: AllocationId) -> WaitingRequest | None:
        return self._waiting.get(allocation)

    def everybody(self) -> list[WaitingRequest]:
        """In the order of arrival."""
        return list(self._waiting.values())

    def of_gang(self, key: GangKey) -> list[WaitingRequest]:
        return [w for w in self._waiting.values() if w.gang_key == key]

    def why(self, waiting: WaitingRequest) -> Explanation | None:
        """How many of the same user and queue go first; None when it stands in the order itself."""
        before = self._admission.before(waiting)
        if before is None:
            return None
        mine = f"user {waiting.requester.user} in queue {waiting.request.queue}"
        return Explanation(reason=Reason.USER_LIMIT, summary=f"{before} requests of {mine} go first")

    def join(self, waiting: WaitingRequest, *, at_once: bool) -> bool:
        """Whether it stands in the queue order now. Raises CalabashError when it can never be granted."""
        if len(self._waiting) >= WAITING_MAX:
            raise CalabashError(f"{WAITING_MAX} requests wait already", reason=Reason.CONFLICT, hint="try later")
        self._waiting[waiting.id] = waiting
        admitted = self._admission.admit(waiting, at_once=at_once)
        if admitted:
            try:
                self._tracker.submit(waiting)
            except CalabashError:
                self.leave(waiting)
                raise
        return admitted

    def leave(self, waiting: WaitingRequest) -> bool:
        """It is answered; those that join the order for it do so, and whether there are any."""
        self._waiting.pop(waiting.id, None)
        return self._joined(self._admission.leave(waiting))

    def _joined(self, joined: list[WaitingRequest]) -> bool:
        for other in joined:  # grows while it is walked
            try:
                self._tracker.submit(other)
            except CalabashError as error:
                self._waiting.pop(other.id, None)
                other.resolve(error)
                joined += self._admission.leave(other)
        return bool(joined)

    def move(
        self, waiting: WaitingRequest, queue: str, *, decided: Callable[[AllocationId], bool]
    ) -> list[WaitingRequest]:
        """To another queue, and its gang with it, each with the age that it has; those that were moved.

        Raises CONFLICT when one of them has been answered or is ``decided``, and whatever the queue has against them; then all
        stand where they stood.
        """
        moved = self.of_gang(waiting.gang_key) if waiting.gang_key is not None else [waiting]
        placed = [w.id for w in moved if decided(w.id) or w.answer.done()]
        if waiting.id not in self._waiting or placed:
            name = placed[0] if placed else waiting.id
            raise CalabashError(
                f"{name} has its place already", reason=Reason.CONFLICT, hint="only what waits can be moved"
            )
        before = [(w, w.request, self._tracker.submitted_at_s(w.id)) for w in moved]
        for member in moved:
            self._out(member)
        try:
            for member, request, since_s in before:
                member.request = replace(request, queue=queue)
                self._in(member, since_s)
        except CalabashError:
            for member, request, since_s in before:
                self._out(member)
                member.request = request
                self._in(member, since_s, at_once=since_s is not None)
            raise
        return moved

    def rename(self, waiting: WaitingRequest, name: AllocationId) -> None:
        """Its grant was taken back before it was told of, and stands in the journal under its old name; it waits under another,
        with the age that it has."""
        since_s = self._tracker.submitted_at_s(waiting.id)
        self._out(waiting)
        del self._waiting[waiting.id]
        waiting.id = name
        self._waiting[name] = waiting
        try:
            self._in(waiting, since_s, at_once=since_s is not None)
        except CalabashError as error:
            self.leave(waiting)
            waiting.resolve(error)

    def _out(self, waiting: WaitingRequest) -> None:
        self._tracker.gone(waiting.id)
        self._joined(self._admission.leave(waiting))

    def _in(self, waiting: WaitingRequest, since_s: float | None, *, at_once: bool = False) -> None:
        if self._admission.admit(waiting, at_once=at_once):
            self._tracker.submit(waiting, since_s=since_s)

    def clear(self) -> list[WaitingRequest]:
        """Those that waited; nobody does any more."""
        waiting = self.everybody()
        self._waiting.clear()
        return waiting
