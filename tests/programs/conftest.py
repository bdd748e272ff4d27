"""Places at which programs run, each set up once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.programs.places import PLACES, Local, Place


@pytest.fixture(scope="session")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Run the place with whose results the others are compared."""
    place = Local(tmp_path_factory.mktemp("local"))
    yield place
    place.close()


@pytest.fixture(scope="module", params=PLACES)
def where(request: pytest.FixtureRequest, local: Place, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    made = PLACES[request.param]
    place = local if isinstance(local, made) else made(tmp_path_factory.mktemp(request.param))
    yield place
    assert place.used_bytes() == 0, "a program left something on the card"
    if place is not local:
        place.close()
