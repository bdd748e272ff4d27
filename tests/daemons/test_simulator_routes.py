"""API routes of the simulated node: a fault that they inject is detected by the pool, and its card recovers."""

from __future__ import annotations

import pytest
from tests.daemons.world import World, until

from calabash.model.errors import CalabashError, Reason


def test_a_card_is_broken_and_healed_by_the_api(world: World) -> None:
    def card() -> dict[str, object]:
        found: dict[str, object] = world.client.get("/v1/simulator")["cards"][1]
        return found

    assert card()["lost"] is False
    world.client.post("/v1/simulator/faults", {"gpu": "1", "fault": "lost"})
    assert card()["lost"] is True
    until(lambda: world.devices()[1]["health"] != "healthy", what="the pool to see that it is lost")
    world.client.post("/v1/simulator/faults", {"gpu": "1", "fault": "recover"})
    until(lambda: world.devices()[1]["health"] == "healthy", what="the card to come back")


def test_a_fault_that_there_is_not_is_told_with_those_that_there_are(world: World) -> None:
    with pytest.raises(CalabashError) as refused:
        world.client.post("/v1/simulator/faults", {"gpu": "0", "fault": "rust"})
    assert refused.value.reason is Reason.BAD_REQUEST
    with pytest.raises(CalabashError, match="not understood"):
        world.client.post("/v1/simulator/faults", {"gpu": "0", "fault": "--help"})
