"""Routes of notifications."""

from __future__ import annotations

from calabash.api import endpoints, requests
from calabash.api import notifications as shapes
from calabash.api.replies import Named
from calabash.model.errors import CalabashError, Reason
from calabash.platform.handlers.request import Asked, body_of, caller_of, operations_of, work
from calabash.platform.notifications.rules import NotificationRules
from calabash.transport.web.routing import handles


@handles(endpoints.LIST_NOTIFICATIONS)
async def list_notifications(request: Asked) -> shapes.NotificationList:
    who = caller_of(request).principal
    return shapes.NotificationList(items=await work(request, _rules(request).visible_rules, who))


@handles(endpoints.SHOW_NOTIFICATION)
async def show_notification(request: Asked, name: str) -> shapes.NotificationView:
    who = caller_of(request).principal
    return await work(request, _rules(request).show, who, _named(name), _tenant(request))


@handles(endpoints.PUT_NOTIFICATION)
async def put_notification(request: Asked, name: str) -> shapes.NotificationReply:
    who = caller_of(request).principal
    order = requests.decode(await body_of(request), shapes.NotificationOrder)
    return await work(request, _rules(request).put, who, _named(name), _tenant(request), order)


@handles(endpoints.DELETE_NOTIFICATION)
async def delete_notification(request: Asked, name: str) -> Named:
    who = caller_of(request).principal
    await work(request, _rules(request).delete, who, _named(name), _tenant(request))
    return Named(name=name)


@handles(endpoints.TEST_NOTIFICATION)
async def test_notification(request: Asked, name: str) -> shapes.NotificationTested:
    who = caller_of(request).principal
    return await work(request, _rules(request).test, who, _named(name), _tenant(request))


def _rules(request: Asked) -> NotificationRules:
    found = operations_of(request).notices
    if found is None:
        raise CalabashError(
            "this pool sends no notices",
            reason=Reason.UNSUPPORTED,
            hint="watch its events, or alert rules on its metrics",
        )
    return found


def _named(name: str) -> str:
    return requests.checked_part(name, what="notification")


def _tenant(request: Asked) -> str | None:
    return requests.decode_query(request.query, shapes.NotificationPlace).tenant


NOTIFICATIONS = (
    list_notifications,
    show_notification,
    put_notification,
    delete_notification,
    test_notification,
)
