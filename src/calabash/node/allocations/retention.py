"""How long an allocation is kept that nobody uses: the rule of whoever hands allocations out."""

from __future__ import annotations

from typing import Protocol

from calabash.adapters.host.processes import Process, alive
from calabash.model.allocation import AllocationRecord, AllocationState

GRANT_GRACE_NS = 10_000_000_000


class Tenure(Protocol):
    """Who else than a live process has a right to what is held."""

    def holds(self, record: AllocationRecord, held_ns: int) -> bool:
        """Whether it is kept although nobody uses it now; ``held_ns``: since this process holds it. Never waits."""
        ...

    def over(self, record: AllocationRecord) -> bool:
        """Whether its tenant cannot use it again, so that what of ours runs for it is to end. Never waits."""
        ...


class RequesterTenure:
    """A grant is kept for the process that asked, as long as that is there and takes it in time; then for its members.
    One that stands is kept until it is given back."""

    def holds(self, record: AllocationRecord, held_ns: int) -> bool:
        if record.request.standing:
            return True
        if record.state is not AllocationState.GRANTED or held_ns >= GRANT_GRACE_NS:
            return False
        client = Process(pid=record.client_pid, start_time=record.client_start_time)
        return record.client_pid <= 0 or alive(client)

    def over(self, record: AllocationRecord) -> bool:
        """A program of the tenant's may connect to what runs for it as long as that is there."""
        del record
        return False
