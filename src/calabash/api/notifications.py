"""Message types of notifications."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from calabash.api.replies import Reply
from calabash.api.requests import New
from calabash.model.notices import NoticeKind

TARGET_CHARACTERS_MAX = 1024


class NotificationPlace(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Query parameters that select the tenant of a notification."""

    tenant: (
        Annotated[
            str,
            Meta(max_length=63, description="empty: the platform; left out: all that the requesting user administers"),
        ]
        | None
    ) = None


class NotificationOrder(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Settings of a notification: a webhook or a mail address. A field that is left out keeps its value."""

    new: New | UnsetType = UNSET
    webhook: (
        Annotated[str, Meta(max_length=TARGET_CHARACTERS_MAX, description="URL to which notices are posted")]
        | UnsetType
    ) = UNSET
    email: Annotated[str, Meta(max_length=254, description="address to which notices are mailed")] | UnsetType = UNSET
    kinds: (
        Annotated[list[NoticeKind], Meta(max_length=20, description="kinds of notices to send; empty: all")] | UnsetType
    ) = UNSET
    new_secret: Annotated[bool, Meta(description="give an existing webhook a new secret")] = False


class NotificationReply(Reply, kw_only=True, frozen=True):
    """Created or changed notification.

    ``secret`` is the key that signs the requests to a webhook. It is in this reply only; empty: unchanged, or no webhook.
    """

    name: str
    tenant: str
    secret: str


class NotificationView(Reply, kw_only=True, frozen=True):
    """Notification with its delivery counters.

    ``waiting``: notices that are not sent yet. ``dropped``: notices that were never sent, because too many waited or one waited
    too long. ``failed``: notices that the receiver refused.
    """

    name: str
    tenant: str
    channel: str
    target: str
    kinds: list[str]
    waiting: int
    delivered: int
    failed: int
    dropped: int
    last_at: float
    last_error: str


class NotificationList(Reply, kw_only=True, frozen=True):
    """Notifications, sorted by tenant and name."""

    items: list[NotificationView]


class NotificationTested(Reply, kw_only=True, frozen=True):
    """Result of a test notice. ``why`` is the error if it was not accepted."""

    name: str
    passed: bool
    why: str
