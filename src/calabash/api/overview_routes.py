"""Route of the overview."""

from __future__ import annotations

from calabash.api.overview import OverviewReply
from calabash.api.route import Route

OVERVIEW = (
    Route(
        method="GET",
        path="/v1/overview",
        summary="Summarize devices, allocations and waiting requests",
        reply=OverviewReply,
    ),
)
