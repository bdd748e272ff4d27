"""Admission to the scheduler's queues: limits how many requests of one user are in a queue at a time.

Theory of operation. The scheduler orders a queue by priority and age. If all waiting requests were in it, a user who
submits four thousand would be ahead of all later users, and every decision would consider all of them. So at most
``window`` requests of one user and queue are in the order at a time. The others wait here, by priority and age. When an
admitted request starts or is withdrawn, the next one is admitted, and its age in the order counts from that moment. The
members of a gang are admitted together, because a gang can start only if all its members are in the order.
"""

from __future__ import annotations

from collections.abc import Iterator

from calabash.binder.local.requests import WaitingRequest
from calabash.model.request import AllocationId

WINDOW = 32

_Lane = tuple[int, str]


class Admission:
    """Requests that are admitted to the queue order, and requests that wait for admission. Pure.

    Args:
        window: most requests of one user and queue that are admitted at a time.
    """

    def __init__(self, window: int = WINDOW) -> None:
        self._window = window
        self._admitted: dict[AllocationId, WaitingRequest] = {}
        self._outside: dict[_Lane, dict[AllocationId, WaitingRequest]] = {}
        self._inside: dict[_Lane, int] = {}

    def admit(self, waiting: WaitingRequest, *, at_once: bool = False) -> bool:
        """Add a request; return True if it is admitted now.

        Otherwise the request waits until a call of ``remove`` for another request admits and returns it. With
        ``at_once`` it is admitted even if the window is full.
        """
        lane = _lane(waiting)
        full = self._inside.get(lane, 0) >= self._window
        if full and not at_once and not self._gang_is_inside(waiting):
            self._outside.setdefault(lane, {})[waiting.id] = waiting
            return False
        self._enter(lane, waiting)
        return True

    def remove(self, waiting: WaitingRequest) -> list[WaitingRequest]:
        """Remove a request that has started or was withdrawn; return the requests that are admitted instead."""
        lane = _lane(waiting)
        outside = self._outside.get(lane)
        if outside is not None:
            outside.pop(waiting.id, None)
        if self._admitted.pop(waiting.id, None) is not None:
            self._inside[lane] -= 1
            if not self._inside[lane]:
                del self._inside[lane]
        joined = list(self._fill(lane))
        if not self._outside.get(lane):
            self._outside.pop(lane, None)
        return joined

    def admitted(self) -> list[WaitingRequest]:
        """Return the admitted requests, in the order of admission."""
        return list(self._admitted.values())

    def count_before(self, waiting: WaitingRequest) -> int | None:
        """Return how many requests of the same user and queue are ahead of it; None if the request is admitted."""
        if waiting.id in self._admitted:
            return None
        outside = self._outside.get(_lane(waiting), {})
        mine = _urgency(waiting)
        return self._inside.get(_lane(waiting), 0) + sum(_urgency(w) < mine for w in outside.values())

    def _fill(self, lane: _Lane) -> Iterator[WaitingRequest]:
        outside = self._outside.get(lane)
        while outside and self._inside.get(lane, 0) < self._window:
            first = min(outside.values(), key=_urgency)
            together = [w for w in outside.values() if w.gang_key == first.gang_key] if first.gang_key else [first]
            for waiting in together:
                del outside[waiting.id]
                self._enter(lane, waiting)
                yield waiting

    def _enter(self, lane: _Lane, waiting: WaitingRequest) -> None:
        self._admitted[waiting.id] = waiting
        self._inside[lane] = self._inside.get(lane, 0) + 1

    def _gang_is_inside(self, waiting: WaitingRequest) -> bool:
        key = waiting.gang_key
        return key is not None and any(w.gang_key == key for w in self._admitted.values())


def _lane(waiting: WaitingRequest) -> _Lane:
    return (waiting.requester.uid, waiting.request.queue)


def _urgency(waiting: WaitingRequest) -> tuple[int, float, str]:
    return (-waiting.request.priority, waiting.created_at, waiting.id)
