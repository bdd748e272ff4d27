"""Fixtures of the planner's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.unit.kubernetes.planner.world import World, unlisted_transitions


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    for service in made.services:
        service.stop()
    assert sum(unlisted_transitions(service) for service in made.services) == made.expected_unlisted
