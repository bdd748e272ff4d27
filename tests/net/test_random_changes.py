"""Test of random changes with a controller that is killed in between; CALABASH_NET_CHANGES sets their number."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from tests.net import needs
from tests.net.random_changes import Endurance

CHANGES = int(os.environ.get("CALABASH_NET_CHANGES", "300"))
CHANGES_PER_CRASH = 50


@pytest.mark.timeout(900 + CHANGES // 5)
def test_random_changes_with_crashes_are_realized_and_never_half_done() -> None:
    needs.need(packets=False)
    with tempfile.TemporaryDirectory(prefix="cbr") as directory:  # sockets have short paths
        endured = Endurance(Path(directory), seed=11).run(changes=CHANGES, crashes=CHANGES // CHANGES_PER_CRASH)
    assert endured.taken + endured.refused == CHANGES
    assert endured.taken > CHANGES // 4
    assert endured.interrupted > 0  # else no crash came while there was something to do
