"""Route of the change feed, restricted to the changes that the principal may read."""

from __future__ import annotations

from calabash.api import endpoints, requests
from calabash.api.changes import ChangeList, ChangePage
from calabash.model.access import visible_tenants
from calabash.platform.handlers.request import Asked, caller_of, operations_of
from calabash.platform.http.change_feed import ChangeFeed, Trace
from calabash.transport.web.routing import handles

_KEPT = "calabash_changes"


@handles(endpoints.LIST_CHANGES)
async def list_changes(request: Asked) -> ChangeList:
    who, operations = caller_of(request).principal, operations_of(request)
    page = requests.decode_query(dict(request.query_params), ChangePage)
    seen = visible_tenants(who)

    def visible(kind: str, trace: Trace) -> bool:
        if seen is None or kind == "devices" or trace.tenant in seen:
            return True
        return kind == "allocations" and operations.permission.owns(who, uid=trace.uid, user=trace.user)

    state = request.app.state
    if _KEPT not in state:
        state[_KEPT] = ChangeFeed(operations.pool.traces)
    changes: ChangeFeed = state[_KEPT]
    return await changes.after(page.after, wait_s=page.wait_s, visible=visible)


CHANGES = (list_changes,)
