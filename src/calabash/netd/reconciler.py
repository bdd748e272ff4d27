"""The round that keeps OVN's northbound database equal to what the book of networks describes.

Theory of operation. What changed in the book, what somebody wrote into our rows, and from time to time everything, is looked
at: rows as they should be against rows as they are, and the difference is written, up to twenty VPCs in one transaction.
Nothing that was done before is needed to know what to do next, so the process may end anywhere. A VPC that cannot be
carried out is tried again after a pause that grows, and holds nobody up: a transaction that is refused is taken apart. What
has been written is realized when northd and the hosts that live and that it concerns have it; their counts are
in the southbound database, which is looked at when it changes. While nothing changes a count goes out every few seconds,
by which dead hosts are known.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress

import structlog

from calabash.api.networks import NetworkReport
from calabash.model.addresses import Address, Network
from calabash.model.errors import CalabashError, Reason
from calabash.model.network import vpc_of
from calabash.net.objects.backends import NONE_CLOSED, ClosedBackends
from calabash.net.ovn.northbound.changes import diff
from calabash.net.ovn.northbound.rows import PLATFORM, Change
from calabash.netd.backoff import Backoff
from calabash.netd.daemons import OvnDaemons, OwnSwitch
from calabash.netd.inbox import Inbox
from calabash.netd.judging import Judge
from calabash.netd.known import KnownNetworks, backends_of
from calabash.netd.order import first
from calabash.netd.plan import Surroundings, planned
from calabash.netd.resting import REST_S
from calabash.netd.source import NetworkNews
from calabash.netd.statuses import Statuses
from calabash.seams.ovn.northbound import Northbound
from calabash.seams.ovn.southbound import Southbound
from calabash.seams.ovn.wire import Credentials

BATCH = 20  # VPCs in one transaction
BEAT_S = 3.0
AGAIN_S = 0.2
NAMES_S = 0.3  # then names in DNS follow: those of several ports together
LOOK_S = 1.0  # that a host is silent is seen without an event
FULL_S = 300.0
TRANSACTION_S = 30.0
_LOST = frozenset((Reason.UNREACHABLE, Reason.TIMEOUT))

Watch = Callable[[Mapping[tuple[str, int], Address], ClosedBackends], None]

log = structlog.get_logger(__name__)


class Reconciler:
    """Carries a book of networks out. ``run`` is one thread's; the other methods are safe for threads.

    Args:
        northbound, southbound: OVSDB servers.
        gateways: names of the gateway hosts; empty: those that say so of themselves.
        protected: as for ``Surroundings``.
        full_s: how often everything is looked at.
        own_switch: as for ``OvnDaemons``.
        rest_s: how long a gateway host that returns, or is new, has to be well before it takes traffic.

    ``report`` is called with what is newly known of objects, and ``watch`` with the backends of load balancers and the closed
    ones of them when the book changes, both in the thread of ``run``; they must not wait. Without ``watch``, none is closed.
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
        self._inbox = Inbox()
        self._full_s, self._protected = full_s, protected
        self._known = KnownNetworks()
        self._backoff = Backoff()
        self._urgent: dict[str, None] = {}
        self._checks: dict[str, None] = {}
        self._names: dict[str, float] = {}
        self._told_s = 0.0
        self._full_due_s = 0.0
        self.report: Callable[[list[NetworkReport]], None] = lambda _: None
        self.watch: Watch | None = None
        self._closed: ClosedBackends | None = None
        self._statuses = Statuses()
        self.northbound = Northbound(
            northbound, credentials=credentials, touched=self._inbox.touched, synchronized=self._inbox.everything
        )
        self.southbound = Southbound(southbound, credentials=credentials, changed=self._inbox.moved)
        self._daemons = OvnDaemons(self.northbound, self.southbound, self._statuses, own_switch=own_switch)
        self._judge = Judge(self.northbound, self.southbound, self._statuses, gateways, rest_s)

    def close(self) -> None:
        """End ``run``, and the connections."""
        self._inbox.stop()
        self.northbound.close()
        self.southbound.close()

    def take(self, news: NetworkNews) -> None:
        """What changed in the book."""
        self._inbox.news(news)

    def take_closed(self, closed: ClosedBackends) -> None:
        """These backends are closed from now on."""
        before, self._closed = self._closed or NONE_CLOSED, closed
        self._judge.closed = closed
        self._inbox.touched({vpc_of(port) for port, _ in before ^ closed})

    @property
    def around(self) -> Surroundings:
        """What rows are made for besides the book."""
        closed = self._closed or NONE_CLOSED
        return Surroundings(hosts=self._judge.hosts, protected=self._protected, closed=closed)

    @property
    def revision(self) -> int:
        """Of the book, that has been taken."""
        return self._known.revision

    def settled(self) -> bool:
        """Whether nothing is left to do: all that is known of the book is written, and realized by whom it concerns."""
        return self._inbox.quiet

    def run(self) -> None:
        """Until it is closed."""
        while not self._inbox.stopped:
            try:
                self._round()
            except CalabashError as error:  # the database has gone: all is looked at when it is back
                log.warning("networks wait for OVN", why=error.message)
                self._inbox.everything()
                time.sleep(AGAIN_S)

    def _round(self) -> None:
        revision = self._known.revision
        self._gather()
        ready = self.northbound.session.has_lock and self.southbound.session.ready and self._known.revision >= 0
        if ready and self.watch is not None and (self._closed is None or revision != self._known.revision):
            if self._closed is None:
                self.take_closed(self.northbound.closed())  # as another process has left it
            self.watch(backends_of(self._known.networks), self._closed or NONE_CLOSED)
        if ready:
            if self._judge.look_at_gateways():
                self._everything()
                self._urgent = {PLATFORM: None, **self._urgent}  # who rests stands there no later than in any other row
            owners = self._batch()
            if owners:
                self._carry_out(owners)
            self._beat()
        else:
            self._judge.look_away()
        if self.northbound.session.has_lock:
            self._judge.look(self._known)
        self._daemons.look(self._known, self._judge.hosts.gateways, leads=self.northbound.session.has_lock)
        reports = self._statuses.taken()
        if reports:
            self.report(reports)
        if not (ready and (self._urgent or self._checks)):
            left = self._backoff.troubles or self._judge.pending or self._names
            self._inbox.wait(self._pause_s(), quiet=ready and not left)

    def _gather(self) -> None:
        mail = self._inbox.taken()
        for one in mail.news:
            self._urgent.update(dict.fromkeys(sorted(self._known.take(one))))
            self._statuses.forget(key for key in one.removed)
            if one.whole:
                self._statuses.forget(set(self._statuses.keys()) - self._known.generations.keys())
        if mail.everything or time.monotonic() >= self._full_due_s:
            self._everything()
        self._checks.update(dict.fromkeys(sorted(mail.touched)))

    def _everything(self) -> None:
        if not self.northbound.session.ready or self._known.revision < 0:
            self._full_due_s = 0.0
            return
        owners = {PLATFORM, *self.northbound.owners(), *self._known.vpcs()}
        self._checks.update(dict.fromkeys(sorted(owners)))
        self._full_due_s = time.monotonic() + self._full_s

    def _batch(self) -> list[str]:
        now_s = time.monotonic()
        for vpc in self._backoff.due(now_s):
            self._urgent.setdefault(vpc)
        for vpc in [vpc for vpc, due_s in self._names.items() if due_s <= now_s]:
            del self._names[vpc]
            self._urgent.setdefault(vpc)
        owners: list[str] = []
        for queue in (self._urgent, self._checks):
            while queue and len(owners) < BATCH:
                owner = next(iter(queue))
                del queue[owner]
                waits = queue is self._checks and (self._backoff.waits(owner, now_s) or owner in self._names)
                if owner not in owners and not waits:
                    owners.append(owner)
        return owners

    def _carry_out(self, owners: list[str]) -> None:
        changes: dict[str, tuple[Change, ...]] = {}
        for owner in owners:
            try:
                rows = planned(self._known.networks, owner, self.around)
                differing = diff(rows, self.northbound.actual(owner))
                changes[owner] = first(differing)
                if len(changes[owner]) < len(differing):
                    self._names[owner] = time.monotonic() + NAMES_S
            except Exception as error:  # of one network, which must not stop the others
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
            for owner in changes:  # one of them is refused, and not the others
                self._carry_out([owner])

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
            self._told_s = time.monotonic()
        for owner, found in changes.items():
            self._backoff.well(owner)
            self._judge.written(self._known, owner, count, changed=bool(found))

    def _failed(self, owner: str, error: Exception) -> None:
        if not isinstance(error, CalabashError):
            log.exception("a network cannot be drawn up", vpc=owner)
            error = CalabashError(f"its rows cannot be drawn up: {error!r}", reason=Reason.UNSUPPORTED)
        trouble = self._backoff.failed(owner, error, time.monotonic())
        log.warning("a network is not carried out", vpc=owner, why=error.message, tries=trouble.tries)
        self._judge.failed(self._known, owner, error)

    def _beat(self) -> None:
        if time.monotonic() - self._told_s >= BEAT_S:
            with suppress(CalabashError):  # it is tried again, and what is wrong is said when it matters
                self.northbound.beat(timeout_s=TRANSACTION_S)
            self._told_s = time.monotonic()

    def _pause_s(self) -> float:
        now_s = time.monotonic()
        due = (
            *self._names.values(),
            self._told_s + BEAT_S,
            self._full_due_s,
            self._backoff.next_s() or now_s + LOOK_S,
            now_s + LOOK_S,
        )
        return max(0.02, min(due) - now_s)
