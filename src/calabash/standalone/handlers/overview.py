"""The route of the front page: everything at a glance, in one reply."""

from __future__ import annotations

import time

from litestar import get

from calabash.api import replies
from calabash.api.overview import OverviewReply
from calabash.model.access import tenants_seen
from calabash.model.errors import CalabashError
from calabash.model.request import AllocationId
from calabash.model.tenancy import Principal
from calabash.standalone import views
from calabash.standalone.handlers.asked import Asked, caller_of, pool_of, work
from calabash.standalone.overview import overview
from calabash.standalone.pool import Pool

UNKNOWN = "unknown"


@get("/v1/overview")
async def show_overview(request: Asked) -> OverviewReply:
    return await work(request, _overview, pool_of(request), caller_of(request).principal)


def _overview(pool: Pool, who: Principal) -> OverviewReply:
    """Of devices everything; of what is held and what waits, that of the tenants which ``who`` sees, and its own."""
    seen = tenants_seen(who)

    def visible(tenant: str, uid: int) -> bool:
        return seen is None or tenant in seen or (uid == who.uid and uid >= 0)

    waiting = [w for w in pool.binder.waiting() if visible(w.request.tenant, w.requester.uid)]
    held = [a for a in pool.agent.snapshot().allocations if visible(a.record.request.tenant, a.record.uid)]
    return overview(
        views.devices(pool.agent).items,
        held,
        pending=len(waiting),
        reasons=[reason for w in waiting[: views.EXPLAINED_MAX] if (reason := _reason(pool, w.id))],
        at_s=time.time(),
    )


def _reason(pool: Pool, name: AllocationId) -> str:
    try:
        why: replies.WhyReply = pool.explanations.why(name)
    except CalabashError:
        return ""  # answered in the meantime
    return why.reason or UNKNOWN if why.state == "pending" else ""


OVERVIEW = (show_overview,)
