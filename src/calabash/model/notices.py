"""Notices, and the subscriptions that send them to webhooks and mail addresses."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class NoticeKind(StrEnum):
    """Subjects of notices. TEST is sent on demand, and to one receiver only."""

    OVER_USE = "over-use"
    BUDGET = "budget"
    EVICTED = "evicted"
    RETURNED = "returned"
    DEVICE_FAILED = "device-failed"
    INVOICE_ISSUED = "invoice-issued"
    WAITING_LONG = "waiting-long"
    TOKEN_EXPIRES = "token-expires"  # noqa: S105
    TEST = "test"


class NoticeChannel(StrEnum):
    """Transports of notices."""

    WEBHOOK = "webhook"
    EMAIL = "email"


KINDS = tuple(kind for kind in NoticeKind if kind is not NoticeKind.TEST)


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """One notice. Each ``id`` is sent once.

    Args:
        at: seconds since 1970.
        tenant: the tenant that the notice concerns; "" for the platform.
        about: the object that the notice concerns, for example an allocation or a device.
        message: the text.
    """

    id: str
    kind: NoticeKind
    at: float
    tenant: str
    about: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Notification:
    """Subscription: the receiver of the notices of a tenant or of the platform.

    Args:
        tenant: the tenant that subscribes; "" for the platform, which gets the notices of all tenants.
        target: a URL or a mail address.
        kinds: kinds of notices to send; empty: all.
        secret: the key that signs the requests to a webhook; empty for mail.
    """

    tenant: str
    name: str
    channel: NoticeChannel
    target: str
    kinds: tuple[NoticeKind, ...] = ()
    secret: str = field(default="", repr=False)
    created_at: float = 0.0

    def wants(self, notice: Notice) -> bool:
        """Return True if the notice is to be sent to this subscription."""
        return self.tenant in {"", notice.tenant} and (not self.kinds or notice.kind in self.kinds)


@dataclass(frozen=True, slots=True, kw_only=True)
class NotificationState:
    """Delivery counters and retry state of a subscription.

    Args:
        delivered, failed, waiting: number of notices.
        dropped: number of notices that were never sent, because too many waited or one waited too long.
        tries: consecutive failed tries.
        next_at: earliest time of the next try, in seconds since 1970.
        last_at: time of the last try.
        last_error: error of the last try; "" if it succeeded.
    """

    delivered: int = 0
    failed: int = 0
    dropped: int = 0
    waiting: int = 0
    tries: int = 0
    next_at: float = 0.0
    last_at: float = 0.0
    last_error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One notice to be sent to one subscription. ``id`` is the same at every try, so that receivers can detect duplicates."""

    id: str
    tenant: str
    name: str
    at: float
    notice: Notice
