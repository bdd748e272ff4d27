"""Expiry of standing allocations, which have no program on this machine and must be renewed by their owner.

A standing request may name the seconds for which its allocation is kept without a renewal (``keep_s``). If it names none, the
allocation is kept until it is released. After a restart of the pool the time of each allocation begins again.
"""

from __future__ import annotations

import threading

from calabash.adapters.clock import Clock
from calabash.model.allocation import AllocationRecord
from calabash.model.errors import CalabashError
from calabash.model.request import AllocationId
from calabash.model.units import format_duration
from calabash.node.agent import NodeAgent

NOT_KEPT = "not_kept"


class StandingAllocations:
    """Expiry times of standing allocations, which have no program on this machine. Safe for threads."""

    def __init__(self, agent: NodeAgent, clock: Clock) -> None:
        self._agent = agent
        self._clock = clock
        self._lock = threading.Lock()
        self._until_ns: dict[AllocationId, int] = {}

    def renew(self, record: AllocationRecord) -> float:
        """Renew a standing allocation; return the seconds for which it is kept now, 0 if it is kept until released.

        Raises BAD_REQUEST for any other allocation, because that is kept as long as its program runs.
        """
        if not record.request.standing:
            raise CalabashError(f"{record.id} is kept as long as its program runs", hint="nothing is to be done")
        if record.request.keep_s:
            with self._lock:
                self._until_ns[record.id] = self._after(record)
        return record.request.keep_s

    def end_overdue(self) -> None:
        """End standing allocations that were not renewed in time."""
        now_ns = self._clock.monotonic_ns()
        standing = [r for r in self._agent.records() if r.request.standing and r.request.keep_s]
        with self._lock:
            self._until_ns = {r.id: self._until_ns.get(r.id, self._after(r)) for r in standing}
            over = [r for r in standing if self._until_ns[r.id] <= now_ns]
        for record in over:
            why = f"its owner has not said for {format_duration(record.request.keep_s)} that it is needed"
            self._agent.end(record.id, reason=NOT_KEPT, explanation=why)

    def _after(self, record: AllocationRecord) -> int:
        return self._clock.monotonic_ns() + int(record.request.keep_s * 1e9)
