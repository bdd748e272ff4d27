"""Policies for how long an allocation without member processes is kept."""

from __future__ import annotations

from typing import Protocol

from calabash.adapters.host.processes import Process, alive
from calabash.model.allocation import AllocationRecord, AllocationState

GRANT_GRACE_NS = 10_000_000_000


class RetentionPolicy(Protocol):
    """Decides whether an allocation is kept although no member process uses it."""

    def retains(self, record: AllocationRecord, held_ns: int) -> bool:
        """Return True if an allocation without member processes is kept. Must not block.

        Args:
            held_ns: time since this agent granted the allocation, or adopted it at its start.
        """
        ...

    def is_abandoned(self, record: AllocationRecord) -> bool:
        """Return True if the tenant cannot use the allocation again, so that its worker is to end. Must not block."""
        ...


class RequesterRetention:
    """Keep a granted allocation until its program has started, but only while its requesting process lives.

    It is kept for at most GRANT_GRACE_NS. Standing allocations are kept until they are released.
    """

    def retains(self, record: AllocationRecord, held_ns: int) -> bool:
        if record.request.standing:
            return True
        if record.state is not AllocationState.GRANTED or held_ns >= GRANT_GRACE_NS:
            return False
        client = Process(pid=record.client_pid, start_time=record.client_start_time)
        return record.client_pid <= 0 or alive(client)

    def is_abandoned(self, record: AllocationRecord) -> bool:
        """Return False: a program of the tenant may connect to the worker as long as the worker lives."""
        del record
        return False
