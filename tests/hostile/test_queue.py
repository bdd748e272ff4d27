"""Attacks on the order of waiting requests."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from tests.api_client import PathClient
from tests.daemons.world import until
from tests.hostile.people import User
from tests.hostile.world import HostileWorld

from calabash.model.errors import CalabashError


def _refusal(home: str) -> list[str]:
    try:
        PathClient(Path(home)).post("/v1/allocations", {"mode": "exclusive"})
    except CalabashError as error:
        return [str(error.reason), error.message]
    return ["granted", ""]


def test_a_refusal_for_a_reservation_names_its_end_and_not_its_owner(
    world: HostileWorld, mallory: User, eve: User
) -> None:
    # The honest tenant's program has no known end, so a start on both cards has none either.
    mallory.runs("/bin/cat", gpus=2, mode="exclusive", wait_s=600)
    waiting: dict[str, Any] = until(lambda: world.held_by(mallory), what="the large request to wait")[0]
    time.sleep(1.2)  # a whole round of the scheduler
    with world.unharmed():
        reason, message = eve.does(_refusal, str(world.home))
        assert reason == "reserved"
        assert waiting["id"] not in message
        assert "for at most" in message or "which starts in" in message, message
