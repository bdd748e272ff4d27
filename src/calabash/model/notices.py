"""What people and programs are told without asking: notices, and who wants which of them sent where."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class NoticeKind(StrEnum):
    """What a notice is about. TEST is sent when somebody asks for it, and to whom it is asked for alone."""

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
    """How a notice goes out."""

    WEBHOOK = "webhook"
    EMAIL = "email"


KINDS = tuple(kind for kind in NoticeKind if kind is not NoticeKind.TEST)


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """Something to be told, once for each ``id``. ``tenant`` "": of the platform; ``about``: what it happened to."""

    id: str
    kind: NoticeKind
    at: float
    tenant: str
    about: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Notification:
    """Who wants what sent where.

    Args:
        tenant: whose; "" is the platform's, which gets the notices of all.
        target: a URL or a mail address.
        kinds: which notices; empty: all.
        secret: what a webhook's requests are signed with; empty for mail.
    """

    tenant: str
    name: str
    channel: NoticeChannel
    target: str
    kinds: tuple[NoticeKind, ...] = ()
    secret: str = field(default="", repr=False)
    created_at: float = 0.0

    def wants(self, notice: Notice) -> bool:
        """Whether that notice is for it."""
        return self.tenant in {"", notice.tenant} and (not self.kinds or notice.kind in self.kinds)


@dataclass(frozen=True, slots=True, kw_only=True)
class NotificationState:
    """What has become of it so far. ``dropped``: never sent, since too many waited or for too long; ``tries``: in a row that
    failed; ``next_at``: not before then is it tried again."""

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
    """One notice on its way to one receiver; receivers know it by ``id``, which stays the same at every try."""

    id: str
    tenant: str
    name: str
    at: float
    notice: Notice
