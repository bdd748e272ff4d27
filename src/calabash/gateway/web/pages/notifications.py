"""Page of notifications with their delivery state. Secrets of webhooks are shown once, when they are created."""

from __future__ import annotations

from collections.abc import Sequence

from calabash.api import notification_routes, notifications
from calabash.gateway.web.lists import matching, part_of
from calabash.gateway.web.pages.page import ConsolePage, Shown, Visit
from calabash.model.notices import KINDS


def listed(found: Sequence[notifications.NotificationView], visit: Visit) -> Shown:
    """Return the data of the page."""
    facets = {"name": lambda n: n.name, "tenant": lambda n: n.tenant, "target": lambda n: n.target}
    kinds = [str(kind) for kind in KINDS]
    return {"part": part_of(matching(found, visit.query, facets), visit.query, total=len(found)), "kinds": kinds}


async def _listed(visit: Visit) -> Shown:
    return listed(await visit.pool.pages(notification_routes.LIST_NOTIFICATIONS), visit)


NOTIFICATION_PAGES = (
    ConsolePage(
        path="/notifications",
        title="Notifications",
        template="notifications.html",
        read=_listed,
        section="notifications",
        needs="manage-notices",
    ),
)
