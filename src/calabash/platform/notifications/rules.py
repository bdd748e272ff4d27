"""Notification rules: create, change and delete them with permission checks, and send test notices."""

from __future__ import annotations

import ipaddress
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace

import structlog
from msgspec import UNSET, UnsetType

from calabash.adapters.clock import Clock
from calabash.adapters.notify import new_secret
from calabash.adapters.notify.mail import checked_address
from calabash.adapters.store.notices import NoticeTables
from calabash.api import notifications as shapes
from calabash.model.access import Action, is_allowed
from calabash.model.errors import CalabashError, Reason
from calabash.model.notices import Delivery, Notice, NoticeChannel, NoticeKind, Notification, NotificationState
from calabash.model.tenancy import Principal
from calabash.platform.access.permission import Permission
from calabash.platform.notifications.settings import NotificationSettings
from calabash.platform.settings_changes import require_presence
from calabash.platform.tenancy.store import TenancyStore, missing
from calabash.transport.web.client import checked_url

log = structlog.get_logger(__name__)


class NoticeSender:
    """Sends single notices to the receivers of webhooks and mail."""

    def __init__(self, settings: NotificationSettings, clock: Clock) -> None:
        self._webhooks, self._mails, self._clock = settings.webhooks(), settings.mails(), clock

    def send(self, to: Notification, delivery: Delivery) -> None:
        """Try one delivery. Raises CalabashError, or RefusedForGoodError if it must not be repeated."""
        if to.channel is NoticeChannel.WEBHOOK:
            self._webhooks.send(to.target, to.secret, delivery, now_s=self._clock.now_s())
        elif self._mails is None:
            raise CalabashError(
                "no mail server is configured", reason=Reason.UNREACHABLE, hint="see [notifications.mail]"
            )
        else:
            self._mails.send(to.target, delivery)


class NotificationRules:
    """Notification rules of one pool. Safe for threads.

    Methods with a principal raise CalabashError if it lacks permission or the change is invalid. Their parameter
    ``tenant`` is the tenant of a rule, "" for the platform, or None for the default that ``_place`` describes.

    Args:
        sender: sends test notices.
        changed: called when a rule was set or a notice was posted.
    """

    def __init__(
        self,
        tables: NoticeTables,
        settings: NotificationSettings,
        *,
        permission: Permission,
        tenancy: TenancyStore,
        sender: NoticeSender,
        changed: Callable[[], None],
        clock: Clock,
    ) -> None:
        self._tables, self._settings = tables, settings
        self._permission, self._tenancy, self._clock = permission, tenancy, clock
        self._rule = settings.rule()
        self._sender, self._changed = sender, changed
        self.any = bool(tables.notifications())  # whether there is any rule

    def visible_rules(self, who: Principal) -> list[shapes.NotificationView]:
        """Return the rules that the principal may manage."""
        found = self._tables.notifications()
        return [_shown(one, state) for one, state in found if is_allowed(who, Action.MANAGE_NOTICES, tenant=one.tenant)]

    def show(self, who: Principal, name: str, tenant: str | None) -> shapes.NotificationView:
        """Return one rule. Raises CalabashError."""
        return _shown(*self._find(name, self._place(who, tenant)))

    def put(
        self, who: Principal, name: str, tenant: str | None, order: shapes.NotificationOrder
    ) -> shapes.NotificationReply:
        """Create a rule or change the settings that are given. Only this reply has the secret of a webhook."""
        place = self._place(who, tenant)
        before = next((n for n, _ in self._tables.notifications() if (n.tenant, n.name) == (place, name)), None)
        require_presence("notification", name, exists=before is not None, new=order.new, command="notify")
        if before is not None and order.webhook is UNSET and order.email is UNSET:
            channel, target = before.channel, before.target
        else:
            channel, target = self._target(order.webhook or "", order.email or "")
        known_kinds = before.kinds if before is not None else ()
        if before is None:
            self._require_room(place)
        secret = ""
        if channel is NoticeChannel.WEBHOOK:
            known = before.secret if before and before.channel is channel and not order.new_secret else ""
            secret = known or new_secret()
        made = Notification(
            tenant=place,
            name=name,
            channel=channel,
            target=target,
            kinds=known_kinds if isinstance(order.kinds, UnsetType) else tuple(dict.fromkeys(order.kinds)),
            secret=secret,
            created_at=before.created_at if before else self._clock.now_s(),
        )
        if self._tables.cursor() < 0 or not self.any:
            self._tables.post((), cursor=self._tables.newest_event())  # no notices of earlier events
        self._tables.put(made)
        self.any = True
        self._changed()
        fresh = before is None or before.secret != secret
        return shapes.NotificationReply(name=name, tenant=place, secret=secret if fresh else "")

    def delete(self, who: Principal, name: str, tenant: str | None) -> None:
        """Delete a rule and its waiting deliveries."""
        place = self._place(who, tenant)
        if not self._tables.delete(place, name):
            raise missing("notification", name)
        self.any = bool(self._tables.notifications())

    def test(self, who: Principal, name: str, tenant: str | None) -> shapes.NotificationTested:
        """Send a test notice now and return whether it was delivered."""
        one, _ = self._find(name, self._place(who, tenant))
        now_s = self._clock.now_s()
        message = f"{who.user} has sent this test notice."
        notice = Notice(id="", kind=NoticeKind.TEST, at=now_s, tenant=one.tenant, about=name, message=message)
        number = f"msg_{secrets.token_hex(20)}"
        try:
            self._sender.send(one, Delivery(id=number, tenant=one.tenant, name=name, at=now_s, notice=notice))
        except CalabashError as error:
            return shapes.NotificationTested(name=name, passed=False, why=error.message)
        return shapes.NotificationTested(name=name, passed=True, why="")

    def post(self, notices: Sequence[Notice], *, cursor: int | None = None) -> None:
        """Store deliveries of the notices to all matching rules. Never raises, and does not wait for receivers.

        Args:
            cursor: number of the last event that the notices cover; None: unchanged.
        """
        if not self.any:
            return
        try:
            made = self._tables.post(notices, cursor=cursor)
        except CalabashError as error:
            log.warning("a notice cannot be stored now", error=error.message)
            return
        if made:
            self._changed()

    def _target(self, webhook: str, email: str) -> tuple[NoticeChannel, str]:
        if bool(webhook) == bool(email):
            raise CalabashError(
                "a notification needs either a webhook or a mail address", hint="give exactly one of them"
            )
        if email:
            domains = [domain.lower() for domain in self._settings.mail.domains]
            if domains and checked_address(email).rpartition("@")[2].lower() not in domains:
                raise CalabashError(
                    f"mail may not go to {email}",
                    reason=Reason.NOT_PERMITTED,
                    hint=f"it goes to {', '.join(domains)}",
                )
            return NoticeChannel.EMAIL, checked_address(email)
        parts = checked_url(webhook)
        try:
            address = ipaddress.ip_address(parts.hostname or "")
        except ValueError:
            address = None
        permitted = parts.scheme == "https" or bool(self._settings.allow)
        if address is not None:
            permitted = self._rule.permits(address) if parts.scheme == "https" else self._rule.named(address)
        if not permitted:
            raise CalabashError(
                f"{parts.hostname} may not be reached{'' if parts.scheme == 'https' else ' without TLS'}",
                reason=Reason.NOT_PERMITTED,
                hint="ask an administrator of the platform to name it in `allow` of [notifications] in pool.toml",
            )
        return NoticeChannel.WEBHOOK, webhook

    def _place(self, who: Principal, tenant: str | None) -> str:
        """Return the tenant of a rule; "" for the platform. Raises NOT_PERMITTED, NOT_FOUND.

        Args:
            who: the principal.
            tenant: the requested tenant; "" for the platform. None chooses the platform if the principal may manage its
                rules, and otherwise the only tenant whose rules the principal may manage.
        """
        if tenant is None:
            mine = sorted({r.tenant for r in who.roles if is_allowed(who, Action.MANAGE_NOTICES, tenant=r.tenant)})
            tenant = "" if is_allowed(who, Action.MANAGE_NOTICES) or len(mine) != 1 else mine[0]
        if tenant and (tenant not in self._tenancy.people().tenants or not is_allowed(who, Action.SEE, tenant=tenant)):
            raise missing("tenant", tenant)
        self._permission.require(who, Action.MANAGE_NOTICES, "set notifications", tenant=tenant)
        return tenant

    def _require_room(self, place: str) -> None:
        count = sum(n.tenant == place for n, _ in self._tables.notifications())
        if count >= self._settings.per_tenant:
            raise CalabashError(
                f"there are {count} notifications, the most that one tenant can have",
                reason=Reason.USER_LIMIT,
                hint="delete one with `calabash notify delete`",
            )

    def _find(self, name: str, tenant: str) -> tuple[Notification, NotificationState]:
        for one, state in self._tables.notifications():
            if (one.tenant, one.name) == (tenant, name):
                return one, state
        raise missing("notification", name)


def _shown(one: Notification, state: NotificationState) -> shapes.NotificationView:
    one = replace(one, secret="")
    return shapes.NotificationView(
        name=one.name,
        tenant=one.tenant,
        channel=one.channel.value,
        target=one.target,
        kinds=[kind.value for kind in one.kinds],
        waiting=state.waiting,
        delivered=state.delivered,
        failed=state.failed,
        dropped=state.dropped,
        last_at=state.last_at,
        last_error=state.last_error,
    )
