"""Fixtures of the contract tests: a real PostgreSQL server, started once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.postgres import Server, running_server


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Server]:
    """A server that lives as long as the session."""
    with running_server() as server:
        yield server
