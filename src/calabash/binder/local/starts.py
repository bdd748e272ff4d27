"""Decided and not yet carried out: which starts wait for others to go, which are being granted, which were overtaken."""

from __future__ import annotations

from collections.abc import Callable

from calabash.binder.local.machine import Start, Stop
from calabash.model.errors import Reason
from calabash.model.mentions import Mentioned, mentions
from calabash.model.request import AllocationId, Placement
from calabash.sched import Explanation


class Starts:
    """The scheduler's decisions between the moment they are taken and the moment they are true."""

    def __init__(self) -> None:
        self._decided: dict[AllocationId, Start] = {}
        self._granting: dict[AllocationId, Start] = {}
        self._overtaken: dict[AllocationId, Stop] = {}
        self._refused: dict[AllocationId, Placement] = {}
        self._held: dict[AllocationId, str] = {}

    def __contains__(self, allocation: AllocationId) -> bool:
        return allocation in self._decided or allocation in self._granting

    def decide(self, start: Start) -> None:
        """It has its place."""
        if start.id not in self._granting:
            self._decided[start.id] = start

    def take_ready(self, gone: Callable[[AllocationId], bool]) -> list[Start]:
        """Those whose predecessors are all gone; they count as being granted from here on."""
        ready = [s for s in self._decided.values() if all(gone(other) for other in s.after)]
        for start in ready:
            self._granting[start.id] = self._decided.pop(start.id)
        return ready

    def granted(self, allocation: AllocationId) -> Stop | None:
        """The attempt is over; the decision that ended it meanwhile, if there is one."""
        self._granting.pop(allocation, None)
        return self._overtaken.pop(allocation, None)

    def again(self, start: Start, *, held: str = "") -> None:
        """There was no room yet: it stays decided. ``held``: what besides others keeps it from its place."""
        self.granted(start.id)
        self._held[start.id] = held
        self._decided[start.id] = start

    def refused(self, start: Start) -> bool:
        """The node has something else at its place. Whether to look for another at once: no, when that was refused before."""
        before, self._refused[start.id] = self._refused.get(start.id), start.placement
        return before != start.placement

    def drop(self, allocation: AllocationId) -> bool:
        """It is not to start, or has started; False when it was not decided."""
        self._refused.pop(allocation, None)
        self._held.pop(allocation, None)
        return self._decided.pop(allocation, None) is not None

    def overtake(self, stop: Stop) -> bool:
        """It is to stop; True when it is being granted and will be ended as soon as that is done."""
        if stop.id not in self._granting:
            return False
        self._overtaken[stop.id] = stop
        return True

    def being_granted(self, allocation: AllocationId) -> bool:
        return allocation in self._granting

    def why(self, allocation: AllocationId) -> Explanation | None:
        """Who must go before it starts; None when it is not decided."""
        if allocation not in self:
            return None
        held = self._held.get(allocation, "")
        if held:
            return Explanation(reason=Reason.FABRIC_HELD, summary=f"it has its place, but {held}")
        start = self._decided.get(allocation)
        after = mentions(Mentioned.REQUEST, start.after if start is not None else ()) or "others"
        return Explanation(reason=Reason.NO_CAPACITY, summary=f"it has its place and waits for {after} to leave it")

    def clear(self) -> None:
        """No decision holds any more; grants that are being made go on."""
        self._decided.clear()
        self._refused.clear()
        self._held.clear()
