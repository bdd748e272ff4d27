"""Thread that creates notices from journal events, invoices, long waiting requests and expiring tokens.

Notices are created from stored records, so the code that changes something does not have to create them. After a
restart, the thread continues after the last event that it has processed. While there are no notification rules, it reads
nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import structlog

from calabash.adapters.clock import Clock
from calabash.adapters.store import Store
from calabash.model.allocation import EventRecord
from calabash.model.device import OUT_OF_SERVICE
from calabash.model.errors import CalabashError, Reason
from calabash.model.messages import in_full
from calabash.model.notices import Notice, NoticeKind
from calabash.model.request import AllocationId
from calabash.model.tenancy import TokenKind
from calabash.platform.access.tokens import Tokens
from calabash.platform.notifications.rules import NotificationRules
from calabash.platform.notifications.settings import NotificationSettings
from calabash.platform.tenancy.directory import TenancyDirectory

PERIOD_S = 1.0
SLOW_ROUNDS = 30
EVENTS_AT_ONCE = 500
KEPT_S = 3 * 86_400.0
INVOICES_S = 3600.0
RETURNED = frozenset({Reason.IDLE, Reason.BUDGET_SPENT, Reason.QUEUE_OVER_LIMIT, Reason.OVER_USE})
EVICTED = frozenset({Reason.RECLAIM, Reason.PREEMPT, Reason.MOVED, Reason.DRAINED, Reason.RUN_TIME, Reason.UNHEALTHY})

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingLong:
    """A waiting request: its ID, its tenant, and the time at which it was made (seconds since the epoch)."""

    id: AllocationId
    tenant: str
    since_s: float


class NoticeCollector:
    """Creates notices of new events every PERIOD_S seconds.

    Tokens, waiting requests and invoices are checked only in every SLOW_ROUNDS-th round.

    Args:
        waiting: returns the waiting requests.
    """

    def __init__(
        self,
        rules: NotificationRules,
        settings: NotificationSettings,
        *,
        store: Store,
        tokens: Tokens,
        people: Callable[[], TenancyDirectory],
        waiting: Callable[[], Iterable[WaitingLong]],
        clock: Clock,
    ) -> None:
        self._rules, self._settings, self._store = rules, settings, store
        self._tokens, self._people, self._waiting, self._clock = tokens, people, waiting, clock
        self._rounds = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="notices", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(timeout=5)

    def collect(self) -> None:
        """Create the notices of one round; does nothing if there are no notification rules."""
        if not self._rules.any:
            return
        events = self._store.events(after=max(0, self._store.notices.cursor()), limit=EVENTS_AT_ONCE)
        if events:
            self._rules.post([n for event in events for n in self._of_event(event)], cursor=events[-1].id)
        if self._rounds % SLOW_ROUNDS == 0:
            self._store.notices.trim(before_s=self._clock.now_s() - KEPT_S)
            self._rules.post([*self._of_tokens(), *self._of_waiting(), *self._of_invoices()])
        self._rounds += 1

    def _of_event(self, event: EventRecord) -> Iterator[Notice]:
        if event.kind == "health" and event.reason in OUT_OF_SERVICE:
            message = f"device {event.device} is {event.reason}: {in_full(event.message)}"
            yield self._notice(event, NoticeKind.DEVICE_FAILED, tenant="", about=event.device, message=message)
        if event.kind != "released" or event.reason not in RETURNED | EVICTED:
            return
        record = self._store.allocation(AllocationId(event.allocation))
        if record is not None:
            kind = NoticeKind.RETURNED if event.reason in RETURNED else NoticeKind.EVICTED
            message = f"{record.id} of {record.user} was taken back: {event.reason}"
            yield self._notice(event, kind, tenant=record.request.tenant, about=record.id, message=message)

    def _notice(self, event: EventRecord, kind: NoticeKind, *, tenant: str, about: str, message: str) -> Notice:
        return Notice(id=f"event {event.id}", kind=kind, at=event.at, tenant=tenant, about=about, message=message)

    def _of_tokens(self) -> Iterator[Notice]:
        now_s, people = self._clock.now_s(), self._people()
        for token in self._tokens.everybody():
            left_s = token.expires_at - now_s
            if token.kind is not TokenKind.API or not token.valid(now_s) or left_s > self._settings.token_days * 86_400:
                continue
            what = f"token {token.id}{f' ({token.note})' if token.note else ''} of {token.user}"
            for tenant in sorted({member.tenant for member in people.members.get(token.user, ())}) or [""]:
                yield Notice(
                    id=f"token {token.id} {tenant}",
                    kind=NoticeKind.TOKEN_EXPIRES,
                    at=now_s,
                    tenant=tenant,
                    about=token.id,
                    message=f"{what} expires in {max(1, round(left_s / 3600))} hours",
                )

    def _of_waiting(self) -> Iterator[Notice]:
        now_s, after_s = self._clock.now_s(), self._settings.waiting_minutes * 60
        for one in self._waiting():
            if now_s - one.since_s >= after_s:
                yield Notice(
                    id=f"waiting {one.id}",
                    kind=NoticeKind.WAITING_LONG,
                    at=now_s,
                    tenant=one.tenant,
                    about=one.id,
                    message=f"request {one.id} has waited for {(now_s - one.since_s) / 60:.0f} minutes",
                )

    def _of_invoices(self) -> Iterator[Notice]:
        for kind, number, tenant, amount, at in self._store.notices.invoices_since(self._clock.now_s() - INVOICES_S):
            yield Notice(
                id=f"invoice {number}",
                kind=NoticeKind.INVOICE_ISSUED,
                at=at,
                tenant=tenant,
                about=number,
                message=f"{'credit note' if kind == 'credit' else 'invoice'} {number} of {amount} was issued to {tenant}",
            )

    def _run(self) -> None:
        while not self._stop.wait(PERIOD_S):
            try:
                self.collect()
            except CalabashError as error:
                log.warning("notices cannot be collected now", error=error.message)
            except Exception:
                log.exception("collecting notices failed and will be repeated")
