"""The route of the front page."""

from __future__ import annotations

from calabash.api.overview import OverviewReply
from calabash.api.route import Route

OVERVIEW = (
    Route(method="GET", path="/v1/overview", summary="what is given out, used, and waited for", reply=OverviewReply),
)
