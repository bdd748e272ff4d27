"""Route of the overview."""

from __future__ import annotations

from typing import Any

from calabash.api import endpoints
from calabash.api.overview import OverviewReply
from calabash.api.route import Route

SHOW_OVERVIEW = Route(
    endpoint=endpoints.SHOW_OVERVIEW,
    summary="Summarize devices, allocations and waiting requests",
    reply=OverviewReply,
)

OVERVIEW: tuple[Route[Any], ...] = (SHOW_OVERVIEW,)
