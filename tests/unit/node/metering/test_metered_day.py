"""A day of churn, kills and restarts is metered to a thousandth, and no interval is lost or written twice."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.unit.node.metering.metered_day import played


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)


def test_a_day_with_200_kills_and_20_restarts_is_metered_to_a_thousandth(tmp_path: Path) -> None:
    day = played(tmp_path, seed=1, kills=210, restarts=24)
    assert day.kills >= 200
    assert day.restarts >= 20
    assert day.held_s > 86_400 / 2
    assert day.broken() == 0
    assert day.error_ratio <= 0.001
    assert day.used_error_ratio <= 0.001
