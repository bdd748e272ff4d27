"""A real Kubernetes for the tests in here, and its logs for those that fail."""

from __future__ import annotations

from tests.kube.fixtures import control_plane, own_control_plane, pytest_runtest_makereport, real_node

__all__ = ["control_plane", "own_control_plane", "pytest_runtest_makereport", "real_node"]
