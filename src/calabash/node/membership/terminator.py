"""End the programs of allocations: SIGTERM once for each process, SIGKILL for all after a grace period."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from dataclasses import dataclass, field

from calabash.adapters.host.processes import Process
from calabash.model.request import AllocationId
from calabash.node.membership.protocol import Membership

TERM_GRACE_NS = 5_000_000_000


@dataclass(slots=True)
class _Asked:
    since_ns: int
    terminated: set[Process] = field(default_factory=set)


class Terminator:
    """Sender of signals to the programs of ending allocations.

    For each allocation it knows which processes got SIGTERM, and when the first of them did.
    """

    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        self._asked: dict[AllocationId, _Asked] = {}

    def end(self, allocations: Iterable[AllocationId], now_ns: int) -> None:
        """Take one step for all ending allocations: SIGTERM to processes that had none, or SIGKILL after TERM_GRACE_NS.

        The state of allocations that are not in ``allocations`` is dropped.
        """
        wanted = set(allocations)
        for gone in self._asked.keys() - wanted:
            del self._asked[gone]
        for allocation in wanted:
            asked = self._asked.setdefault(allocation, _Asked(since_ns=now_ns))
            if now_ns - asked.since_ns >= TERM_GRACE_NS:
                self._membership.kill(allocation)
                continue
            new = set(self._membership.processes(allocation)) - asked.terminated
            if new:
                asked.terminated |= new
                self._membership.signal(allocation, signal.SIGTERM, only=new)
