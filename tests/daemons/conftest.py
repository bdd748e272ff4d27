"""Fixtures: pools with a real daemon, and compiled tenant programs."""

from __future__ import annotations

import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.compiled import compiled
from tests.daemons.world import NATIVE, World


@pytest.fixture
def make_world(tmp_path: Path) -> Iterator[Callable[..., World]]:
    """Return a function that makes pools for this test, not yet started."""
    made: list[World] = []

    def make(gpus: str = "2xA100-40GB", **options: Any) -> World:
        made.append(World(tmp_path / f"home{len(made)}", gpus, **options))
        return made[-1]

    yield make
    for world in made:
        world.close()


@pytest.fixture(scope="session")
def shared() -> Iterator[dict[str, World]]:
    """Yield a dictionary with the pool that tests share, and close the pool after the last test.

    A test that breaks the pool removes it, and the next test creates another one.
    """
    kept: dict[str, World] = {}
    yield kept
    for world in kept.values():
        world.close()


@pytest.fixture
def world(shared: dict[str, World], tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Yield a running, empty pool on two simulated A100-40GB. A test may break it; the next test then gets another."""
    if "world" not in shared:
        home = tmp_path_factory.mktemp("pool")
        home.chmod(0o755)
        shared["world"] = World(home / "home")
        shared["world"].up()
    yield shared["world"]
    if not shared["world"].clean():
        shared.pop("world").close()


@pytest.fixture(scope="session")
def hold() -> str:
    """Compile the program that holds device memory (``programs/hold.c``); return its path."""
    return _tenant("hold")


@pytest.fixture(scope="session")
def grow() -> str:
    """Compile the program that takes device memory as it is told (``programs/grow.c``); return its path."""
    return _tenant("grow")


def _tenant(name: str) -> str:
    headers = Path(sysconfig.get_path("purelib")) / "nvidia" / "cu13" / "include"
    source = Path(__file__).parent / "programs" / f"{name}.c"
    libraries = [f"-L{NATIVE / 'simgpu'}", "-l:libcuda.so.1"]
    return str(compiled(name, ["gcc", "-O1", "-Wall", "-Wextra", "-Werror", "-isystem", headers, source, *libraries]))
