"""Tests of kills at any step from metering to acknowledgement: no second is lost or counted twice."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.unit.kubernetes.usage.killed_round import BEGIN_S, INTERVALS, STEPS, play

from calabash.adapters.store import open_store

ROOT = Path(__file__).resolve().parents[4]


@pytest.mark.parametrize("step", STEPS)
def test_a_kill_while(step: str, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "tests.unit.kubernetes.usage.killed_round", str(tmp_path), step]
    died = subprocess.run(words, cwd=ROOT, check=False, capture_output=True, text=True, timeout=120)
    assert died.returncode == -signal.SIGKILL, died.stderr
    play(tmp_path, "")
    store = open_store(f"sqlite:///{tmp_path / 'server.db'}")
    intervals = sorted((one.from_s, one.to_s) for one in store.usage())
    store.close()
    assert intervals == [(BEGIN_S + 60 * i, BEGIN_S + 60 * (i + 1)) for i in range(INTERVALS)]
