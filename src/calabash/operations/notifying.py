"""Everything that notices take, put together and started: the book of notifications, what collects, what carries."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack

from calabash.operations.notice_collector import NoticeCollector, WaitingLong
from calabash.operations.notice_courier import Courier
from calabash.operations.notice_settings import NotificationSettings
from calabash.operations.notices import NoticeBook
from calabash.operations.permission import Permission
from calabash.operations.tenancy import TenancyBook
from calabash.operations.tokens import Tokens
from calabash.seams.clock import Clock
from calabash.seams.store import Store


def notifying(
    settings: NotificationSettings,
    stack: ExitStack,
    *,
    store: Store,
    permission: Permission,
    tenancy: TenancyBook,
    tokens: Tokens,
    waiting: Callable[[], Iterable[WaitingLong]],
    clock: Clock,
) -> NoticeBook:
    """The book of notifications; what it takes is stopped with the stack. Raises CalabashError(BAD_FILE)."""
    book = NoticeBook(store.notices, settings, permission=permission, tenancy=tenancy, clock=clock)
    courier = Courier(store.notices, book.send, clock)
    book.changed = courier.wake
    collector = NoticeCollector(
        book, settings, store=store, tokens=tokens, people=tenancy.people, waiting=waiting, clock=clock
    )
    courier.start()
    stack.callback(courier.stop)
    collector.start()
    stack.callback(collector.stop)
    return book
