"""Fixtures of the contract tests: a real PostgreSQL server, started once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.postgres import DATABASES, Server, running_server

from calabash.adapters.store import Store, open_store


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Server]:
    """Run a server for the session."""
    with running_server() as server:
        yield server


@pytest.fixture(params=DATABASES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/pool.db"
        return
    with request.getfixturevalue("postgres_server").database() as found:
        yield found


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    opened = open_store(url)
    yield opened
    opened.close()
