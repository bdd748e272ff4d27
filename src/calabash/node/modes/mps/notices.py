"""Notices about an MPS service: journal events, notes for the users of allocations, and health events of its device."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from calabash.adapters.gpu.library import DriverFiles
from calabash.model.errors import Reason
from calabash.model.messages import Message, RequestName, Text
from calabash.model.request import AllocationId
from calabash.node.health.conditions import HealthEvent
from calabash.node.health.policy import EVENT_OF, FaultClass, MpsRules
from calabash.node.modes.mps.daemon import Clients

RECOVERY_EVENTS = (HealthEvent.RESET_DONE, HealthEvent.TEST_PASSED)


class ServiceReports(Protocol):
    """Recipient of the notices of one service."""

    def record_event(self, kind: str, reason: str, allocation: str, message: Text) -> None:
        """Record an event of the service's device; see ``NodeEvents.emit``."""
        ...

    def set_note(self, allocation: AllocationId, note: Text) -> None:
        """Set the note that is shown with an allocation."""
        ...

    def health_event(self, event: HealthEvent, cause: Text, tenants: Collection[AllocationId]) -> None:
        """Report a health event of the device, its cause, and the affected allocations."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceTools:
    """Settings and functions of the pool that a service uses.

    Args:
        name: name of the device or instance in messages.
        allocation_of: returns the allocation of a process.
        reports: recipient of the service's notices.
        environment: variables that direct programs to a simulated node; empty on a machine with GPUs.
        files: location of the driver's programs.
        rules: classification of MPS faults.
    """

    name: str
    allocation_of: Callable[[int], AllocationId | None]
    reports: ServiceReports
    environment: Mapping[str, str]
    files: DriverFiles
    rules: MpsRules


class ServiceNotices:
    """Notices of one service. Health events are queued until ``report``, which must be called without a lock."""

    def __init__(self, tools: ServiceTools) -> None:
        self._tools = tools
        self._waiting: deque[tuple[HealthEvent, Text, frozenset[AllocationId]]] = deque()

    def report(self) -> None:
        """Deliver the queued health events in order."""
        while self._waiting:
            self._tools.reports.health_event(*self._waiting.popleft())

    def report_failure(self, kind: str, hit: Mapping[AllocationId, list[int]], cause: Text) -> None:
        """Notify the affected allocations of a fault or a death, and queue the health event.

        Args:
            kind: kind of the event.
            hit: PIDs of the affected clients by allocation.
            cause: a clause to which "on the service ..." can be added, such as "the MPS daemon died".
        """
        name = self._tools.name
        for allocation, pids in hit.items():
            message = Message(
                "{cause} on {service} and affected client{s} {pids}: all their CUDA calls fail, new programs are served",
                cause=cause,
                service=name,
                s="s" if len(pids) > 1 else "",
                pids=", ".join(map(str, sorted(pids))),
            )
            self._tools.reports.set_note(allocation, message)
            self._tools.reports.record_event(kind, Reason.NEIGHBOUR_FAULT, allocation, message)
        if not hit:
            message = Message("{cause} on {service} and affected no client", cause=cause, service=name)
            self._tools.reports.record_event(kind, Reason.NEIGHBOUR_FAULT, "", message)
        event = event_of(self._tools.rules.client_fault if kind == "mps_fault" else self._tools.rules.daemon_died)
        if event is not None:
            self._waiting.append((event, cause, frozenset(hit)))

    def report_fault(self, culprit: int, clients: Clients) -> None:
        """Notify all clients of a service that one of them had a fatal fault.

        Args:
            culprit: PID of the client with the fault; -1: unknown.
        """
        whose = clients.owner_of(culprit)
        by: Text = f"process {culprit}" if culprit > 0 else "a client"
        if whose:
            by = Message("allocation {allocation} (process {pid})", allocation=RequestName(whose), pid=culprit)
        self.report_failure("mps_fault", clients.by_allocation(), Message("a fatal fault of {by} occurred", by=by))

    def report_recovery(self, message: str) -> None:
        """Report that programs are served again, and queue the health events of the recovery."""
        self._tools.reports.record_event("mps_back", "", "", message)
        self._waiting.extend((event, message, frozenset[AllocationId]()) for event in RECOVERY_EVENTS)

    def report_unadmitted(self, pid: int, whose: AllocationId | None, owner: AllocationId) -> None:
        """Report a client that was terminated because it joined while the server gave the share of another allocation.

        Args:
            whose: the client's allocation; None: unknown.
            owner: the allocation whose share the server gave.
        """
        message = Message(
            "client {pid} joined while the share of allocation {allocation} was set, and was terminated",
            pid=pid,
            allocation=RequestName(owner),
        )
        self._tools.reports.record_event("mps_slipped_in", Reason.NOT_PERMITTED, whose or "", message)

    def report_mismatch(self, allocation: AllocationId, how: str) -> None:
        """Report that a program did not get the share of its allocation, and show this as a note of the allocation.

        Args:
            how: the difference, for the text.
        """
        self._tools.reports.set_note(allocation, f"the device reports another share: {how}")
        self._tools.reports.record_event("mps_unverified", Reason.UNVERIFIED, allocation, how)


def event_of(fault: FaultClass) -> HealthEvent | None:
    """Return the health event of a fault class. A suspect MPS service needs a reset, that is, a restart."""
    return HealthEvent.NEEDS_RESET if fault is FaultClass.SUSPECT else EVENT_OF.get(fault)
