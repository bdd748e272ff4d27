"""Create and start the services of notifications: rules, collector and delivery threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack

from calabash.adapters.clock import Clock
from calabash.adapters.store import Store
from calabash.platform.access.permission import Permission
from calabash.platform.access.tokens import Tokens
from calabash.platform.notifications.collector import NoticeCollector, WaitingLong
from calabash.platform.notifications.delivery import DeliveryThreads
from calabash.platform.notifications.rules import NoticeSender, NotificationRules
from calabash.platform.notifications.settings import NotificationSettings
from calabash.platform.tenancy.store import TenancyStore


def notifying(
    settings: NotificationSettings,
    stack: ExitStack,
    *,
    store: Store,
    permission: Permission,
    tenancy: TenancyStore,
    tokens: Tokens,
    waiting: Callable[[], Iterable[WaitingLong]],
    clock: Clock,
) -> NotificationRules:
    """Start the threads that collect and deliver notices, and return the rules. Raises BAD_FILE.

    Args:
        stack: stops the threads when it is closed.
        waiting: returns the waiting requests; users get a notice of those that wait for a long time.
    """
    sender = NoticeSender(settings, clock)
    courier = DeliveryThreads(store.notices, sender.send, clock)
    rules = NotificationRules(
        store.notices,
        settings,
        permission=permission,
        tenancy=tenancy,
        sender=sender,
        changed=courier.wake,
        clock=clock,
    )
    collector = NoticeCollector(
        rules, settings, store=store, tokens=tokens, people=tenancy.people, waiting=waiting, clock=clock
    )
    courier.start()
    stack.callback(courier.stop)
    collector.start()
    stack.callback(collector.stop)
    return rules
