"""Routes of the simulated node on which a pool runs."""

from __future__ import annotations

from calabash.api import simulator as shapes
from calabash.api.route import Route

SIMULATOR = (
    Route(
        method="GET",
        path="/v1/simulator",
        summary="Get the simulated node and the faults of its devices",
        reply=shapes.SimulatedNode,
        administrators=True,
        note="empty if the devices are real",
    ),
    Route(
        method="POST",
        path="/v1/simulator/faults",
        summary="Inject a fault into a simulated device, or remove its faults",
        reply=shapes.SimulatedNode,
        body=shapes.FaultOrder,
        administrators=True,
        note="404 if the devices are real",
    ),
)
