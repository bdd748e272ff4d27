"""Fixtures: a root pool with an honest tenant, and hostile users."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.evidence_sources import rescue
from tests.hostile.people import User
from tests.hostile.world import HostileWorld, stand_aside

_PRIORITY = -10  # pool, tenant and attackers alike: other load of the machine is not part of the attack


class Standing:
    """Pool that tests share as long as it is intact, and the raised priority of this process while it exists."""

    def __init__(self) -> None:
        self.kept: dict[str, HostileWorld] = {}
        self._before: int | None = None

    def begin(self) -> dict[str, HostileWorld]:
        if self._before is None:
            self._before = os.getpriority(os.PRIO_PROCESS, 0)
            os.setpriority(os.PRIO_PROCESS, 0, _PRIORITY)
        return self.kept

    def end(self) -> None:
        while self.kept:
            self.kept.popitem()[1].close()
        if self._before is not None:
            os.setpriority(os.PRIO_PROCESS, 0, self._before)
            self._before = None


_standing = Standing()


@pytest.fixture
def standing() -> dict[str, HostileWorld]:
    """Return a dictionary with the pool that tests share as long as it is intact. Skip the test without root."""
    stand_aside()
    return _standing.begin()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    """End the shared pool and the raised priority before this process runs a test of another folder.

    They would slow down such a test.
    """
    if nextitem is None or not nextitem.path.is_relative_to(Path(__file__).parent):
        _standing.end()


@pytest.fixture
def world(standing: dict[str, HostileWorld]) -> Iterator[HostileWorld]:
    """Yield a pool with the honest tenant; fail if attackers leave anything behind after the test."""
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
    """Return a function that makes pools for this test."""
    made: list[HostileWorld] = []

    def make(gpus: str = "1xA100-40GB", *, neighbour: bool = False, **more: Any) -> HostileWorld:
        made.append(HostileWorld(gpus, neighbour=neighbour, **more))
        return made[-1]

    yield make
    for world in made:
        world.close()


@pytest.fixture
def mallory(world: HostileWorld) -> User:
    """Return a hostile user."""
    return world.user()


@pytest.fixture
def eve(world: HostileWorld) -> User:
    """Return another hostile user."""
    return world.user()
