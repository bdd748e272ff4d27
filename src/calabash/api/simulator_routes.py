"""Routes of the simulated node on which a pool runs."""

from __future__ import annotations

from typing import Any

from calabash.api import endpoints
from calabash.api import simulator as shapes
from calabash.api.route import Route

SHOW_SIMULATOR = Route(
    endpoint=endpoints.SHOW_SIMULATOR,
    summary="Get the simulated node and the faults of its devices",
    reply=shapes.SimulatedNode,
    administrators=True,
    note="empty if the devices are real",
)
INJECT_FAULT = Route(
    endpoint=endpoints.INJECT_FAULT,
    summary="Inject a fault into a simulated device, or remove its faults",
    reply=shapes.SimulatedNode,
    body=shapes.FaultOrder,
    administrators=True,
    note="404 if the devices are real",
)

SIMULATOR: tuple[Route[Any], ...] = (
    SHOW_SIMULATOR,
    INJECT_FAULT,
)
