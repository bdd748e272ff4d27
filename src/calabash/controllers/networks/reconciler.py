"""Reconciler: keeps OVN's northbound database equal to the rows of the networks.

Theory of operation. The *owner* of a row is a VPC, or the platform for shared rows. Three kinds of events select the
owners to be reconciled: changes of the networks, changes of rows by other clients, and a periodic full comparison. For
each owner the desired rows are compared with the actual rows, and the differences are written, up to BATCH owners in
one transaction. Nothing depends on the result of an earlier round, so the process may end at any point.

A VPC that cannot be written is tried again with exponential backoff. It does not block others, because a refused
transaction is repeated for each VPC alone.

A change is *realized* when northd and all responding hosts that it affects have carried it out. OVN numbers the changes
(``nb_cfg``), and each host reports the number of the last change that it has carried out in the southbound database. If
there are no changes, a new number is requested every BEAT_S seconds, so that hosts which do not respond are detected.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

import structlog

from calabash.adapters.ovn.northbound import Northbound
from calabash.adapters.ovn.southbound import Southbound
from calabash.adapters.ovn.wire import Credentials
from calabash.api.networks import NetworkReport
from calabash.controllers.networks.desired_rows import Surroundings, owner_rows, without_dns_updates
from calabash.controllers.networks.event_queue import EventQueue
from calabash.controllers.sources.network_source import NetworkUpdate
from calabash.controllers.sources.network_store import KnownNetworks, backends_of
from calabash.controllers.status.conditions import StatusTracker
from calabash.controllers.status.gateway_hold_down import REST_S
from calabash.controllers.status.ovn_daemons import OvnDaemons, OwnSwitch
from calabash.controllers.status.status_store import Statuses
from calabash.model.addresses import Address, Network
from calabash.model.errors import CalabashError, Reason
from calabash.model.network import vpc_of
from calabash.net.objects.backends import NONE_CLOSED, ClosedBackends
from calabash.net.ovn.northbound.changes import diff
from calabash.net.ovn.northbound.rows import PLATFORM, Change

BATCH = 20  # VPCs in one transaction
BEAT_S = 3.0
AGAIN_S = 0.2
NAMES_S = 0.3  # delay of DNS changes, which combines those of several ports
POLL_S = 1.0  # silent hosts are detected by polling
FULL_S = 300.0
TRANSACTION_S = 30.0
BACKOFF_MIN_S, BACKOFF_MAX_S = 0.5, 60.0
_LOST = frozenset((Reason.UNREACHABLE, Reason.TIMEOUT))

Watch = Callable[[Mapping[tuple[str, int], Address], ClosedBackends], None]

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedVpc:
    """Failure of a VPC: last error, number of tries, and time of the next try."""

    error: CalabashError
    tries: int
    next_s: float


class VpcBackoff:
    """Failures by VPC. The pause doubles with every consecutive failure, from BACKOFF_MIN_S to BACKOFF_MAX_S seconds."""

    def __init__(self) -> None:
        self.failures: dict[str, FailedVpc] = {}

    def failed(self, vpc: str, error: CalabashError, now_s: float) -> FailedVpc:
        """Record that the configuration of a VPC has failed; return the failure with the time of the next try."""
        tries = self.failures[vpc].tries + 1 if vpc in self.failures else 1
        pause_s = min(BACKOFF_MAX_S, BACKOFF_MIN_S * 2.0 ** min(tries - 1, 10))
        self.failures[vpc] = FailedVpc(error=error, tries=tries, next_s=now_s + pause_s)
        return self.failures[vpc]

    def succeeded(self, vpc: str) -> None:
        self.failures.pop(vpc, None)

    def due(self, now_s: float) -> list[str]:
        """Return the failed VPCs whose pause is over."""
        return [vpc for vpc, failure in self.failures.items() if failure.next_s <= now_s]

    def next_s(self) -> float | None:
        """Return the time of the next try of any VPC; None if no VPC has failed."""
        return min((failure.next_s for failure in self.failures.values()), default=None)

    def waits(self, vpc: str, now_s: float) -> bool:
        """Return True if the VPC has failed and its pause is not over yet."""
        failure = self.failures.get(vpc)
        return failure is not None and failure.next_s > now_s


class Reconciler:
    """Writes the networks to OVN. ``run`` belongs to one thread; the other methods are thread-safe.

    Args:
        northbound, southbound: addresses of the OVSDB servers.
        credentials: files for TLS connections; None for none.
        gateways: names of the gateway hosts; if empty, the hosts that announce themselves as gateway hosts.
        protected: ranges of the platform's own networks, which tenants must not reach.
        full_s: seconds between full comparisons.
        rest_s: seconds for which a gateway host that is new, or was lost, must be stable before it carries traffic.
        own_switch: name of this host, and a function that returns True if its switch responds; see ``OvnDaemons``. None
            if the controller is not on a host of tenant networks.
    """

    def __init__(
        self,
        northbound: str,
        southbound: str,
        *,
        credentials: Credentials | None = None,
        gateways: tuple[str, ...] = (),
        protected: tuple[Network, ...] = (),
        full_s: float = FULL_S,
        rest_s: float = REST_S,
        own_switch: OwnSwitch | None = None,
    ) -> None:
        self._queue = EventQueue()
        self._full_s, self._protected = full_s, protected
        self._known = KnownNetworks()
        self._backoff = VpcBackoff()
        self._urgent: dict[str, None] = {}
        self._checks: dict[str, None] = {}
        self._delayed_dns: dict[str, float] = {}
        self._requested_s = 0.0
        self._full_due_s = 0.0
        self._closed: ClosedBackends | None = None
        self._statuses = Statuses()
        self.northbound = Northbound(
            northbound,
            credentials=credentials,
            touched=self._queue.add_changed_owners,
            synchronized=self._queue.request_full_check,
        )
        self.southbound = Southbound(southbound, credentials=credentials, changed=self._queue.add_host_progress)
        self._daemons = OvnDaemons(self.northbound, self.southbound, self._statuses, own_switch=own_switch)
        self._tracker = StatusTracker(self.northbound, self.southbound, self._statuses, gateways, rest_s)

    def close(self) -> None:
        """End ``run`` and close the connections."""
        self._queue.stop()
        self.northbound.close()
        self.southbound.close()

    def apply_update(self, update: NetworkUpdate) -> None:
        """Queue a change of the networks, to be written by ``run``."""
        self._queue.add_update(update)

    def set_closed_backends(self, closed: ClosedBackends) -> None:
        """Set the backends at which no program listens; reconcile the VPCs of backends for which this has changed."""
        before, self._closed = self._closed or NONE_CLOSED, closed
        self._tracker.set_closed_backends(closed)
        self._queue.add_changed_owners({vpc_of(port) for port, _ in before ^ closed})

    @property
    def surroundings(self) -> Surroundings:
        """Inputs of the translation besides the networks."""
        closed = self._closed or NONE_CLOSED
        return Surroundings(hosts=self._tracker.hosts, protected=self._protected, closed=closed)

    @property
    def revision(self) -> int:
        """Revision of the networks that were last passed to ``apply_update`` and processed; -1 for none."""
        return self._known.revision

    def settled(self) -> bool:
        """Return True if all known networks are written and realized, and no event waits."""
        return self._queue.quiet

    def run(self, report: Callable[[list[NetworkReport]], None], watch: Watch | None = None) -> None:
        """Reconcile until ``close`` is called. The callbacks are called in this thread and must not block.

        Args:
            report: called with new status reports.
            watch: called when the networks change, with the load balancer backends to check for a listening program and
                with those that are closed now. None: no such check is made, so that no backend becomes closed.
        """
        while not self._queue.stopped:
            try:
                self._reconcile_once(report, watch)
            except CalabashError as error:  # the database is unreachable: compare everything when it returns
                log.warning("OVN databases are unreachable", why=error.message)
                self._queue.request_full_check()
                time.sleep(AGAIN_S)

    def _reconcile_once(self, report: Callable[[list[NetworkReport]], None], watch: Watch | None) -> None:
        revision = self._known.revision
        self._collect_events()
        ready = self.northbound.session.has_lock and self.southbound.session.ready and self._known.revision >= 0
        if ready and watch is not None and (self._closed is None or revision != self._known.revision):
            if self._closed is None:
                self.set_closed_backends(self.northbound.closed())  # as written by the previous controller
            watch(backends_of(self._known.networks), self._closed or NONE_CLOSED)
        if ready:
            if self._tracker.update_gateways():
                self._queue_all()
                self._urgent = {
                    PLATFORM: None,
                    **self._urgent,
                }  # write held-down hosts before rows that depend on them
            owners = self._next_owners()
            if owners:
                self._reconcile_owners(owners)
            self._request_count()
        else:
            self._tracker.suspend()
        if self.northbound.session.has_lock:
            self._tracker.update_progress(self._known)
        self._daemons.update(self._known, self._tracker.hosts.gateways, leads=self.northbound.session.has_lock)
        reports = self._statuses.take_reports()
        if reports:
            report(reports)
        if not (ready and (self._urgent or self._checks)):
            left = self._backoff.failures or self._tracker.pending or self._delayed_dns
            self._queue.wait(self._pause_s(), quiet=ready and not left)

    def _collect_events(self) -> None:
        events = self._queue.take_events()
        for one in events.updates:
            self._urgent.update(dict.fromkeys(sorted(self._known.apply_update(one))))
            self._statuses.remove(key for key in one.removed)
            if one.whole:
                self._statuses.remove(set(self._statuses.keys()) - self._known.generations.keys())
        if events.full_check or time.monotonic() >= self._full_due_s:
            self._queue_all()
        self._checks.update(dict.fromkeys(sorted(events.changed_owners)))

    def _queue_all(self) -> None:
        if not self.northbound.session.ready or self._known.revision < 0:
            self._full_due_s = 0.0
            return
        owners = {PLATFORM, *self.northbound.owners(), *self._known.vpcs()}
        self._checks.update(dict.fromkeys(sorted(owners)))
        self._full_due_s = time.monotonic() + self._full_s

    def _next_owners(self) -> list[str]:
        now_s = time.monotonic()
        for vpc in self._backoff.due(now_s):
            self._urgent.setdefault(vpc)
        for vpc in [vpc for vpc, due_s in self._delayed_dns.items() if due_s <= now_s]:
            del self._delayed_dns[vpc]
            self._urgent.setdefault(vpc)
        owners: list[str] = []
        for queue in (self._urgent, self._checks):
            while queue and len(owners) < BATCH:
                owner = next(iter(queue))
                del queue[owner]
                waits = queue is self._checks and (self._backoff.waits(owner, now_s) or owner in self._delayed_dns)
                if owner not in owners and not waits:
                    owners.append(owner)
        return owners

    def _reconcile_owners(self, owners: list[str]) -> None:
        changes: dict[str, tuple[Change, ...]] = {}
        for owner in owners:
            try:
                rows = owner_rows(self._known.networks, owner, self.surroundings)
                differing = diff(rows, self.northbound.actual(owner))
                changes[owner] = without_dns_updates(differing)
                if len(changes[owner]) < len(differing):
                    self._delayed_dns[owner] = time.monotonic() + NAMES_S
            except Exception as error:  # an error in one network must not stop the others
                self._failed(owner, error)
        try:
            self._write(changes)
        except CalabashError as error:
            if error.reason in _LOST:
                self._checks.update(dict.fromkeys(changes))
                raise
            if len(changes) == 1:
                self._failed(next(iter(changes)), error)
                return
            for owner in changes:  # find the VPC that is refused
                self._reconcile_owners([owner])

    def _write(self, changes: dict[str, tuple[Change, ...]]) -> None:
        fresh = {owner: found for owner, found in changes.items() if found}
        count = self.northbound.counts()[0]
        if fresh:
            vpcs = [owner for owner in fresh if owner != PLATFORM]
            count = self.northbound.apply(
                [change for found in fresh.values() for change in found],
                revisions=dict.fromkeys(vpcs, self._known.revision),
                timeout_s=TRANSACTION_S,
            )
            self._requested_s = time.monotonic()
        for owner, found in changes.items():
            self._backoff.succeeded(owner)
            self._tracker.rows_written(self._known, owner, count, changed=bool(found))

    def _failed(self, owner: str, error: Exception) -> None:
        if not isinstance(error, CalabashError):
            log.exception("rows cannot be computed", vpc=owner)
            error = CalabashError(f"rows cannot be computed: {error!r}", reason=Reason.UNSUPPORTED)
        failure = self._backoff.failed(owner, error, time.monotonic())
        log.warning("network cannot be written", vpc=owner, why=error.message, tries=failure.tries)
        self._tracker.write_failed(self._known, owner, error)

    def _request_count(self) -> None:
        if time.monotonic() - self._requested_s >= BEAT_S:
            with suppress(CalabashError):  # it is tried again later
                self.northbound.beat(timeout_s=TRANSACTION_S)
            self._requested_s = time.monotonic()

    def _pause_s(self) -> float:
        now_s = time.monotonic()
        due = (
            *self._delayed_dns.values(),
            self._requested_s + BEAT_S,
            self._full_due_s,
            self._backoff.next_s() or now_s + POLL_S,
            now_s + POLL_S,
        )
        return max(0.02, min(due) - now_s)
