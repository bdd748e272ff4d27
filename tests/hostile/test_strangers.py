"""Attacks by programs that are on a card and in no allocation."""

from __future__ import annotations

import time

from tests.daemons.world import until
from tests.hostile.people import User
from tests.hostile.world import HostileWorld

GIB_20 = 20 * 1024


def _events_of(world: HostileWorld, kind: str) -> list[str]:
    return [e["message"] for e in world.events(kind)]


def test_a_program_without_a_slice_is_found_within_two_seconds(world: HostileWorld, mallory: User) -> None:
    world.forget_events()
    stranger = mallory.starts(world.program("hostile"), "hold", str(GIB_20), environment=world.environment_of_node())
    assert stranger.line() == f"held {GIB_20}"
    begun = time.monotonic()
    message = until(lambda: _events_of(world, "stranger"), within_s=10, what="an event about the stranger")[0]
    assert time.monotonic() - begun <= 2.5
    assert str(stranger.pid) in message
    with world.unharmed():
        pass
    stranger.close()


def test_a_card_is_not_granted_for_what_a_stranger_holds(world: HostileWorld, mallory: User, eve: User) -> None:
    world.forget_events()
    environment = world.environment_of_node()
    stranger = mallory.starts(world.program("hostile"), "hold", str(GIB_20), environment=environment)
    assert stranger.line() == f"held {GIB_20}"
    until(lambda: _events_of(world, "stranger"), within_s=5, what="an event about the stranger")
    with world.unharmed():
        # The first card has 40 GiB: 2 are the neighbour's, 20 the stranger's.
        asked = [eve.runs("/bin/cat", memory_mib=30 * 1024, cores=10) for _ in range(2)]
        until(lambda: all(child.dead() or world.of(child) for child in asked), what="both to be answered")
        assert [a["slices"][0]["device_index"] for a in world.held_by(eve)] == [1]
    stranger.close()


def test_a_card_with_a_stranger_is_not_granted_exclusively(world: HostileWorld, mallory: User, eve: User) -> None:
    environment = world.environment_of_node() | {"CUDA_VISIBLE_DEVICES": "1"}
    world.forget_events()
    stranger = mallory.starts(world.program("hostile"), "hold", "4096", environment=environment)
    assert stranger.line() == "held 4096"
    until(lambda: _events_of(world, "stranger"), within_s=5, what="an event about the stranger")
    with world.unharmed():
        asked = eve.runs("/bin/cat", mode="exclusive")
        assert "refused" in until(asked.text, what="the exclusive request to be answered")
    stranger.close()
    until(lambda: not world.held_by(eve))
