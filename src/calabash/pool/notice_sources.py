"""Sources of notices (messages to users) in the pool of one machine: over-use, and requests that wait for a long time."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from calabash.adapters.clock import Clock
from calabash.binder.local.binder import Binder
from calabash.model.errors import Reason
from calabash.model.notices import Notice, NoticeKind
from calabash.platform.notifications.collector import WaitingLong
from calabash.platform.notifications.rules import NotificationRules
from calabash.pool.overuse.policy import OverUseFinding


def over_use_notifier(rules: NotificationRules, clock: Clock) -> Callable[[str, OverUseFinding], None]:
    """Return the function that the over-use watch calls; it posts a notice of each new finding.

    The notice of an ended allocation is not posted here: the collector of notices creates it from the journal event.
    """

    def notify(kind: str, finding: OverUseFinding) -> None:
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
            rules.post([notice])

    return notify


def waiting_long(binder: Binder) -> Iterable[WaitingLong]:
    """Return all waiting requests, for notices about those that wait too long."""
    return [WaitingLong(id=w.id, tenant=w.request.tenant, since_s=w.created_at) for w in binder.waiting()]
