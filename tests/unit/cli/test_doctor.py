"""Tests of ``calabash doctor``'s checks of drivers, with the simulated driver in place of a real one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.native.simnode import simctl

from calabash.adapters.gpu.library import simulated_library_dir


def findings(tmp_path: Path, gpus: str) -> dict[str, Any]:
    state = tmp_path / "node.state"
    assert simctl("create", state, "--gpus", gpus).returncode == 0
    places = {"CALABASH_SIM": str(state), "LD_LIBRARY_PATH": str(simulated_library_dir())}
    command = [sys.executable, "-m", "calabash.cli.main", "doctor", "-o", "json"]
    environment = os.environ | places | {"CALABASH_HOME": str(tmp_path / "home")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return {item["check"]: item for item in json.loads(done.stdout)["items"]}


def test_card_memory_that_programs_can_have_without_cuda_is_warned_of(tmp_path: Path) -> None:
    found = findings(tmp_path, "2xGH200")["coherence"]
    assert found["result"] == "warn"
    assert "2 cards" in found["text"]
    assert "NUMA nodes 2, 10" in found["text"]
    assert "NVreg_CoherentGPUMemoryMode=driver" in found["hint"]


@pytest.mark.parametrize("gpus", ["H100", "T4"])
def test_card_memory_on_the_bus_is_nobody_elses(tmp_path: Path, gpus: str) -> None:
    found = findings(tmp_path, gpus)
    assert found["driver"]["text"] == "libcuda.so.1 loads"
    assert "coherence" not in found
