"""What is told of a multi-process service: to the journal, to who asks about an allocation, to the health of its card."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from calabash.adapters.gpu.library import DriverFiles
from calabash.model.errors import Reason
from calabash.model.mentions import Mentioned, mention
from calabash.model.request import AllocationId
from calabash.node.health.conditions import HealthEvent
from calabash.node.health.policy import EVENT_OF, FaultClass, MpsRules
from calabash.node.modes.mps.clients import Clients

WELL_AGAIN = (HealthEvent.RESET_DONE, HealthEvent.TEST_PASSED)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceTools:
    """What a service may use of its pool.

    Args:
        name: of what it serves, for people.
        allocation_of: who a process is.
        tell: an event: kind, reason, allocation, message.
        notes: what an allocation's user is to know when it is asked about.
        happened: something happened to it, for the health of its card: event, cause, and whom it concerns.
        rules: how that is judged.
    """

    name: str
    allocation_of: Callable[[int], AllocationId | None]
    tell: Callable[[str, str, str, str], None]
    environment: Mapping[str, str]
    files: DriverFiles
    notes: Callable[[AllocationId, str], None]
    happened: Callable[[HealthEvent, str, Collection[AllocationId]], None]
    rules: MpsRules


class ServiceNews:
    """The news of one service. What it tells the health of its card waits for ``report``, which no lock may be held for."""

    def __init__(self, tools: ServiceTools) -> None:
        self._tools = tools
        self._waiting: deque[tuple[HealthEvent, str, frozenset[AllocationId]]] = deque()

    def report(self) -> None:
        """Tell the health of the card what has happened, in that order."""
        while self._waiting:
            self._tools.happened(*self._waiting.popleft())

    def hit(self, kind: str, hit: Mapping[AllocationId, list[int]], cause: str) -> None:
        """Something has hit all clients: each allocation is told of its own."""
        name = self._tools.name
        for allocation, pids in hit.items():
            message = (
                f"{cause} on {name} hit its client{'s' if len(pids) > 1 else ''}"
                f" {', '.join(map(str, sorted(pids)))}: every CUDA call of theirs fails, programs that start are served"
            )
            self._tools.notes(allocation, message)
            self._tools.tell(kind, Reason.NEIGHBOUR_FAULT, allocation, message)
        if not hit:
            self._tools.tell(kind, Reason.NEIGHBOUR_FAULT, "", f"{cause} on {name} hit nobody")
        event = event_of(self._tools.rules.client_fault if kind == "mps_fault" else self._tools.rules.daemon_died)
        if event is not None:
            self._waiting.append((event, cause, frozenset(hit)))

    def fault(self, culprit: int, clients: Clients) -> None:
        """A client made a fatal fault; -1: nobody knows which."""
        whose = clients.whose(culprit)
        by = (
            f"allocation {mention(Mentioned.REQUEST, whose)} (process {culprit})"
            if whose
            else f"process {culprit}"
            if culprit > 0
            else "a client"
        )
        self.hit("mps_fault", clients.by_allocation(), f"a fatal fault of {by}")

    def back(self, message: str) -> None:
        """Programs are served again."""
        self._tools.tell("mps_back", "", "", message)
        self._waiting.extend((event, message, frozenset[AllocationId]()) for event in WELL_AGAIN)

    def slipped_in(self, pid: int, whose: AllocationId | None, owner: AllocationId) -> None:
        """It joined while the share of another was set."""
        shown = mention(Mentioned.REQUEST, owner)
        self._tools.tell(
            "mps_slipped_in", Reason.NOT_PERMITTED, whose or "",
            f"client {pid} joined while the share of allocation {shown} was set, and was parted from the card",
        )  # fmt: skip

    def unverified(self, allocation: AllocationId, how: str) -> None:
        """What it has is not what it should have."""
        self._tools.notes(allocation, f"its share is not what the device reports: {how}")
        self._tools.tell("mps_unverified", Reason.UNVERIFIED, allocation, how)


def event_of(fault: FaultClass) -> HealthEvent | None:
    """What a fault of a class is for the health of a card; a service that is suspect is one that has to start again."""
    return HealthEvent.NEEDS_RESET if fault is FaultClass.SUSPECT else EVENT_OF.get(fault)
