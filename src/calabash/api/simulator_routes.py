"""Routes of the simulated node under a pool."""

from __future__ import annotations

from calabash.api import simulator as shapes
from calabash.api.route import Route

SIMULATOR = (
    Route(
        method="GET",
        path="/v1/simulator",
        summary="the simulated node, with faults of its cards",
        reply=shapes.SimulatedNode,
        administrators=True,
        note="empty where the cards are real",
    ),
    Route(
        method="POST",
        path="/v1/simulator/faults",
        summary="breaks a simulated card, or heals it",
        reply=shapes.SimulatedNode,
        body=shapes.FaultOrder,
        administrators=True,
        note="404 where the cards are real",
    ),
)
