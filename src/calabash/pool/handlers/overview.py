"""Route of the overview of the whole pool."""

from __future__ import annotations

import time
from collections.abc import Sequence

from calabash.api import endpoints
from calabash.api.overview import OverviewReply
from calabash.model.errors import CalabashError
from calabash.model.request import AllocationId
from calabash.node.snapshot import DeviceSnapshot
from calabash.platform.access.visibility import Visibility
from calabash.platform.handlers.request import Asked, visibility_of, work
from calabash.platform.overview import overview
from calabash.pool.handlers.context import pool_of
from calabash.pool.pool import Pool
from calabash.pool.views import resources as views_resources
from calabash.transport.web.routing import handles

UNKNOWN = "unknown"


@handles(endpoints.SHOW_OVERVIEW)
async def show_overview(request: Asked) -> OverviewReply:
    return await work(request, _overview, pool_of(request), visibility_of(request))


def _overview(pool: Pool, visibility: Visibility) -> OverviewReply:
    waiting = [w for w in pool.binder.waiting() if views_resources.is_visible(w, visibility)]
    states = pool.agent.devices()
    return overview(
        views_resources.shown_devices(states, visibility),
        views_resources.held(pool.agent, visibility),
        pending=len(waiting),
        reasons=[reason for w in waiting[: views_resources.EXPLAINED_MAX] if (reason := _reason(pool, w.id, states))],
        at_s=time.time(),
    )


def _reason(pool: Pool, name: AllocationId, states: Sequence[DeviceSnapshot]) -> str:
    try:
        why = pool.explanations.explain(name, states)
    except CalabashError:
        return ""  # granted in the meantime
    return why.reason or UNKNOWN if why.state == "pending" else ""


OVERVIEW = (show_overview,)
