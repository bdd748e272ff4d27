"""Short soak: all actors at once on one pool, faults close to each other, and the checks of the end."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MINUTES = "0.3"


@pytest.mark.timeout(600)
def test_short_soak_ends_without_violations() -> None:
    seed = os.environ.get("CALABASH_SOAK_SEED", "12")
    words = ["--minutes", MINUTES, "--seed", seed, "--short"]
    done = subprocess.run(
        [sys.executable, "-m", "bench.soak", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    found = re.search(r"(\d+) runs, (\d+) faults, (\d+) checks: 0 violations", done.stdout)
    assert found is not None, done.stdout[-2000:]
    runs, faults, checks = map(int, found.groups())
    assert runs > 20
    assert faults > 5
    assert checks > 3
