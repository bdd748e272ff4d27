"""Queue of events for the reconciler: changed networks, changed rows, progress of hosts."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field

from calabash.controllers.sources.network_source import NetworkUpdate


@dataclass(slots=True)
class PendingEvents:
    """Events since the last ``take_events``.

    Args:
        updates: changes of the networks.
        changed_owners: owners (VPCs, or the platform) whose rows another client has changed.
        full_check: compare the rows of all owners.
        hosts_progressed: hosts have carried out changes, appeared or disappeared.
    """

    updates: list[NetworkUpdate] = field(default_factory=list)
    changed_owners: set[str] = field(default_factory=set)
    full_check: bool = False
    hosts_progressed: bool = False

    def __bool__(self) -> bool:
        return bool(self.updates or self.changed_owners or self.full_check or self.hosts_progressed)


class EventQueue:
    """Thread-safe queue of events. Its methods do not block, except ``wait``."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._events = PendingEvents(full_check=True)
        self._quiet = False
        self.stopped = False

    def add_update(self, update: NetworkUpdate) -> None:
        """Add a change of the networks."""
        with self._changed:
            self._events.updates.append(update)
            self._changed.notify_all()

    def add_changed_owners(self, owners: Iterable[str]) -> None:
        """Add owners (VPCs, or the platform) whose rows another client has changed."""
        with self._changed:
            self._events.changed_owners.update(owners)
            self._changed.notify_all()

    def request_full_check(self) -> None:
        """Request a comparison of the rows of all owners, because the rows known here may be outdated."""
        with self._changed:
            self._events.full_check = True
            self._changed.notify_all()

    def add_host_progress(self) -> None:
        """Signal that hosts have carried out changes, appeared or disappeared."""
        with self._changed:
            self._events.hosts_progressed = True
            self._changed.notify_all()

    def stop(self) -> None:
        with self._changed:
            self.stopped = True
            self._changed.notify_all()

    def take_events(self) -> PendingEvents:
        """Return and clear all events."""
        with self._changed:
            events, self._events = self._events, PendingEvents()
            self._quiet = False
            return events

    def wait(self, within_s: float, *, quiet: bool) -> None:
        """Wait for an event, at most ``within_s`` seconds.

        Args:
            quiet: True if the caller has no work left; ``EventQueue.quiet`` shows it to other threads.
        """
        with self._changed:
            self._quiet = quiet
            self._changed.wait_for(lambda: self._events or self.stopped, within_s)

    @property
    def quiet(self) -> bool:
        """True if the reconciler has no work left and no event has arrived."""
        with self._changed:
            return self._quiet and not (self._events.updates or self._events.changed_owners or self._events.full_check)
