"""What the pool of one machine adds to its notices: over-use, and requests that wait."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack

from calabash.binder.binder import Binder
from calabash.model.errors import Reason
from calabash.model.notices import Notice, NoticeKind
from calabash.operations.notice_collector import NoticeCollector, WaitingLong
from calabash.operations.notice_courier import Courier
from calabash.operations.notice_settings import NotificationSettings
from calabash.operations.notices import NoticeBook
from calabash.seams.clock import Clock
from calabash.standalone.overuse import OverUseFinding
from calabash.standalone.pool import Pool


def notifying(pool: Pool, settings: NotificationSettings, clock: Clock, stack: ExitStack) -> NoticeBook:
    """The book of notifications, with what carries notices started. Raises CalabashError(BAD_FILE)."""
    tables = pool.store.notices
    book = NoticeBook(tables, settings, permission=pool.permission, tenancy=pool.tenancy, clock=clock)
    courier = Courier(tables, book.send, clock)
    book.changed = courier.wake
    collector = NoticeCollector(
        book,
        settings,
        store=pool.store,
        tokens=pool.tokens,
        people=pool.tenancy.people,
        waiting=lambda: _waiting(pool.binder),
        clock=clock,
    )
    courier.start()
    stack.callback(courier.stop)
    collector.start()
    stack.callback(collector.stop)
    return book


def over_use_told(book: NoticeBook, clock: Clock) -> Callable[[str, OverUseFinding], None]:
    """What the watch over over-use calls. What was taken back is told when it is back."""

    def told(kind: str, finding: OverUseFinding) -> None:
        if kind == "over_use":
            now_s = clock.now_s()
            spent = finding.reason is Reason.BUDGET_SPENT
            notice = Notice(
                id=f"{finding.key} {now_s:.3f}",
                kind=NoticeKind.BUDGET if spent else NoticeKind.OVER_USE,
                at=now_s,
                tenant=finding.tenant,
                about=finding.allocation or finding.tenant,
                message=finding.message,
            )
            book.post([notice])

    return told


def _waiting(binder: Binder) -> Iterable[WaitingLong]:
    return [WaitingLong(id=w.id, tenant=w.request.tenant, since_s=w.created_at) for w in binder.waiting()]
