"""What the README begins with: three tenants on one card, judged by NVML and by the programs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.alone
def test_the_demo_finds_every_limit_held() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tools.demo"], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "every limit held" in done.stdout
