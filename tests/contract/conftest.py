"""Fixtures of the contract tests: a real PostgreSQL server and a real Kubernetes, each started once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.kube.fixtures import control_plane, own_control_plane, pytest_runtest_makereport
from tests.postgres import Server, running_server

__all__ = ["control_plane", "own_control_plane", "postgres_server", "pytest_runtest_makereport"]


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Server]:
    """A server that lives as long as the session."""
    with running_server() as server:
        yield server
