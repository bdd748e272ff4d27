"""Allocations that stand and are kept as long as somebody says so: who has died for good keeps no device.

A request that stands without a program of this machine may say how long it is kept without a word from its owner. A pool that
starts again gives everybody that long anew.
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


class Keeps:
    """When each of them is over. Methods may be called from any thread."""

    def __init__(self, agent: NodeAgent, clock: Clock) -> None:
        self._agent = agent
        self._clock = clock
        self._lock = threading.Lock()
        self._until_ns: dict[AllocationId, int] = {}

    def renew(self, record: AllocationRecord) -> float:
        """Its owner is there: for how many seconds it is kept now; 0 when it is kept until it is given back.

        Raises BAD_REQUEST for one that lives as long as its program.
        """
        if not record.request.standing:
            raise CalabashError(f"{record.id} is kept as long as its program runs", hint="nothing is to be done")
        if record.request.keep_s:
            with self._lock:
                self._until_ns[record.id] = self._after(record)
        return record.request.keep_s

    def end_overdue(self) -> None:
        """End those of which nobody has spoken for too long."""
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
