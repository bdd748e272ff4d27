"""Shapes of notifications."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from calabash.api.replies import Reply
from calabash.api.requests import New
from calabash.model.notices import NoticeKind

TARGET_CHARACTERS_MAX = 1024


class NotificationPlace(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Whose notification, in the query string."""

    tenant: (
        Annotated[str, Meta(max_length=63, description="empty: the platform's; left out: of whatever one administers")]
        | None
    ) = None


class NotificationOrder(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Target of notices: a web server, or a mail address. A field that is left out keeps its value."""

    new: New | UnsetType = UNSET
    webhook: (
        Annotated[str, Meta(max_length=TARGET_CHARACTERS_MAX, description="URL that notices are posted to")] | UnsetType
    ) = UNSET
    email: Annotated[str, Meta(max_length=254, description="address that notices are mailed to")] | UnsetType = UNSET
    kinds: Annotated[list[NoticeKind], Meta(max_length=20, description="which notices; empty: all")] | UnsetType = UNSET
    new_secret: Annotated[bool, Meta(description="whether a webhook that is there gets another secret")] = False


class NotificationReply(Reply, kw_only=True, frozen=True):
    """What was set. ``secret``: what a webhook's requests are signed with, in this reply only; empty: as before, or none."""

    name: str
    tenant: str
    secret: str


class NotificationView(Reply, kw_only=True, frozen=True):
    """Who is told what, and how that goes. ``waiting`` are on their way; ``dropped`` were never sent, since too many waited
    or for too long; ``failed`` were refused."""

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
    """By tenant and name."""

    items: list[NotificationView]


class NotificationTested(Reply, kw_only=True, frozen=True):
    """Whether a test notice was taken; ``why`` not."""

    name: str
    passed: bool
    why: str
