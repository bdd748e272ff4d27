"""Time-slicing on this node: tenants see the cards of their slice and nothing is limited."""

from __future__ import annotations

from calabash.agent.modes.protocol import NodeTools, ViewOnly
from calabash.sharing import timeslice


class TimeSliceExecutor(ViewOnly):
    """A view-only slot."""

    name = timeslice.MODE.name


def open_mode(tools: NodeTools) -> TimeSliceExecutor:
    """The executor of this mode."""
    return TimeSliceExecutor(tools)
