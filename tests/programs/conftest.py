"""The place that a module's programs run at."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.programs.places import PLACES, Place


@pytest.fixture(scope="module", params=PLACES)
def where(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    place = Place(request.param, tmp_path_factory.mktemp("programs"))
    yield place
    assert place.node.device()["used_bytes"] == 0, "a program left something on the card"
    place.close()
