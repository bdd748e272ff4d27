"""Fixtures: a root pool with an honest neighbour, and people who mean harm."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.evidence_sources import rescue
from tests.hostile.people import User
from tests.hostile.world import HostileWorld, stand_aside

_PRIORITY = -10  # pool, neighbour and attackers alike: what else this machine does is not part of the attack


@pytest.fixture(scope="session")
def standing() -> Iterator[dict[str, HostileWorld]]:
    """The world that tests hand on as long as it stands."""
    stand_aside()
    before = os.getpriority(os.PRIO_PROCESS, 0)
    os.setpriority(os.PRIO_PROCESS, 0, _PRIORITY)
    kept: dict[str, HostileWorld] = {}
    yield kept
    for world in kept.values():
        world.close()
    os.setpriority(os.PRIO_PROCESS, 0, before)


@pytest.fixture
def world(standing: dict[str, HostileWorld]) -> Iterator[HostileWorld]:
    """A pool with the neighbour on it. After each test nothing of the attackers is left, or the test fails."""
    if "world" not in standing:
        standing["world"] = HostileWorld()
    try:
        yield standing["world"]
        standing["world"].settle()
    except BaseException as error:
        rescue(standing["world"], error)
        standing.pop("world").close()
        raise


@pytest.fixture
def make_world(standing: dict[str, HostileWorld]) -> Iterator[Callable[..., HostileWorld]]:
    """Makes pools of a test's own."""
    made: list[HostileWorld] = []

    def make(gpus: str = "1xA100-40GB", *, neighbour: bool = False, **more: Any) -> HostileWorld:
        made.append(HostileWorld(gpus, neighbour=neighbour, **more))
        return made[-1]

    yield make
    for world in made:
        world.close()


@pytest.fixture
def mallory(world: HostileWorld) -> User:
    """Somebody who means harm."""
    return world.user()


@pytest.fixture
def eve(world: HostileWorld) -> User:
    """Somebody else who means harm."""
    return world.user()
