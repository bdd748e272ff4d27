"""Fixtures of the command line's tests: a cluster in memory."""

from __future__ import annotations

import pytest
from tests.unit.cli.kube_world import World

from calabash.cli.kubectl import access as kubectl_access


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World()
    monkeypatch.setattr(kubectl_access, "connect", lambda kubeconfig, context: (made.client, "default"))
    return made
