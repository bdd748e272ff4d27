"""Fixtures that numba-cuda's tests expect of the conftest.py beside their source, which their wheel does not contain."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="class")
def initialize_from_pytest_config(request: pytest.FixtureRequest) -> None:
    request.cls._dump_failed_filechecks = False
