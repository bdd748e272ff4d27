"""Routes of notifications."""

from __future__ import annotations

from calabash.api import notifications as shapes
from calabash.api.replies import Named
from calabash.api.route import Route

_WHO = "administrators of the tenant; the platform's: administrators of the platform"

NOTIFICATIONS = (
    Route(
        method="GET",
        path="/v1/notifications",
        summary="who is told of what",
        reply=shapes.NotificationList,
        note="those that whoever asks administers",
    ),
    Route(
        method="GET",
        path="/v1/notifications/{name}",
        summary="a notification",
        reply=shapes.NotificationView,
        query=shapes.NotificationPlace,
        note=_WHO,
    ),
    Route(
        method="PUT",
        path="/v1/notifications/{name}",
        summary="creates a notification, or replaces it",
        reply=shapes.NotificationReply,
        body=shapes.NotificationOrder,
        query=shapes.NotificationPlace,
        note=_WHO,
    ),
    Route(
        method="DELETE",
        path="/v1/notifications/{name}",
        summary="deletes a notification and what waits for its receiver",
        reply=Named,
        query=shapes.NotificationPlace,
        note=_WHO,
    ),
    Route(
        method="POST",
        path="/v1/notifications/{name}/test",
        summary="sends a test notice at once",
        reply=shapes.NotificationTested,
        query=shapes.NotificationPlace,
        note=_WHO,
    ),
)
