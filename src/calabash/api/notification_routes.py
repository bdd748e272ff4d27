"""Routes of notifications."""

from __future__ import annotations

from calabash.api import notifications as shapes
from calabash.api.replies import Named
from calabash.api.route import Route

_ADMINISTRATORS = "administrators of the tenant; notifications of the platform: administrators of the platform"

NOTIFICATIONS = (
    Route(
        method="GET",
        path="/v1/notifications",
        summary="List notifications",
        reply=shapes.NotificationList,
        note="only notifications that the requesting user administers",
    ),
    Route(
        method="GET",
        path="/v1/notifications/{name}",
        summary="Get a notification",
        reply=shapes.NotificationView,
        query=shapes.NotificationPlace,
        note=_ADMINISTRATORS,
    ),
    Route(
        method="PUT",
        path="/v1/notifications/{name}",
        summary="Create or change a notification",
        reply=shapes.NotificationReply,
        body=shapes.NotificationOrder,
        query=shapes.NotificationPlace,
        note=_ADMINISTRATORS,
    ),
    Route(
        method="DELETE",
        path="/v1/notifications/{name}",
        summary="Delete a notification and its unsent notices",
        reply=Named,
        query=shapes.NotificationPlace,
        note=_ADMINISTRATORS,
    ),
    Route(
        method="POST",
        path="/v1/notifications/{name}/test",
        summary="Send a test notice",
        reply=shapes.NotificationTested,
        query=shapes.NotificationPlace,
        note=_ADMINISTRATORS,
    ),
)
