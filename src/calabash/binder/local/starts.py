"""Starts that are decided and not yet carried out: waiting for allocations to end, being granted, or overtaken.

A start is *overtaken* if the scheduler decides to stop the request while it is being granted.
"""

from __future__ import annotations

from collections.abc import Callable

from calabash.binder.local.machine import Start, Stop
from calabash.model.errors import Reason
from calabash.model.messages import Message, RequestName, Text, names
from calabash.model.request import AllocationId, Placement
from calabash.sched import Explanation


class Starts:
    """Starts between the scheduler's decision and the grant."""

    def __init__(self) -> None:
        self._decided: dict[AllocationId, Start] = {}
        self._granting: dict[AllocationId, Start] = {}
        self._overtaken: dict[AllocationId, Stop] = {}
        self._refused: dict[AllocationId, Placement] = {}
        self._held: dict[AllocationId, Text] = {}

    def __contains__(self, allocation: AllocationId) -> bool:
        return allocation in self._decided or allocation in self._granting

    def add(self, start: Start) -> None:
        """Add a decided start, unless it is being granted."""
        if start.id not in self._granting:
            self._decided[start.id] = start

    def take_ready(self, gone: Callable[[AllocationId], bool]) -> list[Start]:
        """Return the starts for which all allocations that had to end first have ended, and mark them as being granted.

        ``gone`` returns True for an allocation that has ended.
        """
        ready = [s for s in self._decided.values() if all(gone(other) for other in s.after)]
        for start in ready:
            self._granting[start.id] = self._decided.pop(start.id)
        return ready

    def end_grant(self, allocation: AllocationId) -> Stop | None:
        """Note that an attempt to grant has ended; return the stop that was decided meanwhile, if any."""
        self._granting.pop(allocation, None)
        return self._overtaken.pop(allocation, None)

    def retry(self, start: Start, *, held: Text = "") -> None:
        """Set a start back from "being granted" to "decided" because its devices were not free yet; it is tried again.

        Args:
            held: text on an obstacle other than allocations that have not ended; "": none.
        """
        self.end_grant(start.id)
        self._held[start.id] = held
        self._decided[start.id] = start

    def note_refusal(self, start: Start) -> bool:
        """Note that the node agent refused a placement.

        Returns True if the request is to be decided again at once. False if the agent refused the same placement
        before, so that an immediate retry would repeat forever.
        """
        before, self._refused[start.id] = self._refused.get(start.id), start.placement
        return before != start.placement

    def remove(self, allocation: AllocationId) -> bool:
        """Remove a start that was granted or is cancelled. Returns False if it was not in state "decided"."""
        self._refused.pop(allocation, None)
        self._held.pop(allocation, None)
        return self._decided.pop(allocation, None) is not None

    def overtake(self, stop: Stop) -> bool:
        """Note that the scheduler has stopped a start while it is being granted. ``end_grant`` returns this stop later.

        Returns False if the start is not being granted.
        """
        if stop.id not in self._granting:
            return False
        self._overtaken[stop.id] = stop
        return True

    def is_being_granted(self, allocation: AllocationId) -> bool:
        """Return True while the start is being granted."""
        return allocation in self._granting

    def explain_wait(self, allocation: AllocationId) -> Explanation | None:
        """Return which allocations must end before the start; None if none is decided."""
        if allocation not in self:
            return None
        held = self._held.get(allocation, "")
        if held:
            obstacle = Message("devices are chosen for the request, but {obstacle}", obstacle=held)
            return Explanation(reason=Reason.FABRIC_HELD, summary=obstacle)
        start = self._decided.get(allocation)
        after = names(RequestName, start.after) if start is not None and start.after else "others"
        summary = Message("devices are chosen for the request, and it waits for {after} to end", after=after)
        return Explanation(reason=Reason.NO_CAPACITY, summary=summary)

    def clear(self) -> None:
        """Remove all decisions; grants in progress continue."""
        self._decided.clear()
        self._refused.clear()
        self._held.clear()
