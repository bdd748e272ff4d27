"""Routes of notifications."""

from __future__ import annotations

from typing import Any

from calabash.api import endpoints
from calabash.api import notifications as shapes
from calabash.api.replies import Named
from calabash.api.route import Route

_ADMINISTRATORS = "administrators of the tenant; notifications of the platform: administrators of the platform"

LIST_NOTIFICATIONS = Route(
    endpoint=endpoints.LIST_NOTIFICATIONS,
    summary="List notifications",
    reply=shapes.NotificationList,
    note="only notifications that the requesting user administers",
)
SHOW_NOTIFICATION = Route(
    endpoint=endpoints.SHOW_NOTIFICATION,
    summary="Get a notification",
    reply=shapes.NotificationView,
    query=shapes.NotificationPlace,
    note=_ADMINISTRATORS,
)
PUT_NOTIFICATION = Route(
    endpoint=endpoints.PUT_NOTIFICATION,
    summary="Create or change a notification",
    reply=shapes.NotificationReply,
    body=shapes.NotificationOrder,
    query=shapes.NotificationPlace,
    note=_ADMINISTRATORS,
)
DELETE_NOTIFICATION = Route(
    endpoint=endpoints.DELETE_NOTIFICATION,
    summary="Delete a notification and its unsent notices",
    reply=Named,
    query=shapes.NotificationPlace,
    note=_ADMINISTRATORS,
)
TEST_NOTIFICATION = Route(
    endpoint=endpoints.TEST_NOTIFICATION,
    summary="Send a test notice",
    reply=shapes.NotificationTested,
    query=shapes.NotificationPlace,
    note=_ADMINISTRATORS,
)

NOTIFICATIONS: tuple[Route[Any], ...] = (
    LIST_NOTIFICATIONS,
    SHOW_NOTIFICATION,
    PUT_NOTIFICATION,
    DELETE_NOTIFICATION,
    TEST_NOTIFICATION,
)
