"""Route of the change feed, restricted to the changes that the principal may read."""

from __future__ import annotations

from calabash.api import endpoints, requests
from calabash.api.changes import ChangeList, ChangePage
from calabash.model.access import visible_tenants
from calabash.platform.handlers.request import Asked, caller_of, operations_of
from calabash.platform.http.change_feed import ChangeFeed, Trace
from calabash.transport.web.routing import handles


@handles(endpoints.LIST_CHANGES)
async def list_changes(request: Asked) -> ChangeList:
    who, operations = caller_of(request).principal, operations_of(request)
    page = requests.decode_query(request.query, ChangePage)
    seen = visible_tenants(who)

    def visible(kind: str, trace: Trace) -> bool:
        if seen is None or kind == "devices" or trace.tenant in seen:
            return True
        return kind == "allocations" and operations.permission.owns(who, uid=trace.uid, user=trace.user)

    changes: ChangeFeed = request.app.state.changes
    return await changes.after(page.after, wait_s=page.wait_s, visible=visible)


CHANGES = (list_changes,)
