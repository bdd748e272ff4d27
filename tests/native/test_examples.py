"""Test that the README's example does on a simulated card what the README states."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.native.simnode import Node, compile_holder, until

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "tenant.py"


def test_example_keeps_the_card_busy(tmp_path: Path) -> None:
    node = Node(tmp_path / "node.state", "T4", compile_holder())
    command = [sys.executable, str(EXAMPLE), "--seconds", "60", "--kernel-us", "5000"]
    program = subprocess.Popen(command, env=node.environment, stdout=subprocess.DEVNULL)
    try:
        busy = "answer = nvmlDeviceGetUtilizationRates(handles()[0]).gpu"
        until(lambda: node.nvml(busy) >= 50, "the card is idle")
    finally:
        program.kill()
        program.wait()
        node.close()
