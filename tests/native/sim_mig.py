"""Partitioning of a simulated card for a test, by the real nvidia-ml-py in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from calabash.adapters.gpu.library import simulated_library_dir

_CUT = """
import ctypes, json, sys
from pynvml import *
nvmlInit()
card, layout = json.loads(sys.argv[1])
h = nvmlDeviceGetHandleByIndex(card)
nvmlDeviceSetMigMode(h, 1)
uuids = []
for profile, start, size, parts in layout:
    placement = c_nvmlGpuInstancePlacement_t(start, size)
    gi = nvmlDeviceCreateGpuInstanceWithPlacement(h, profile, ctypes.byref(placement))
    for part in parts:
        nvmlGpuInstanceCreateComputeInstance(gi, part)
for i in range(nvmlDeviceGetMaxMigDeviceCount(h)):
    try: uuids.append(nvmlDeviceGetUUID(nvmlDeviceGetMigDeviceHandleByIndex(h, i)))
    except NVMLError: break
print(json.dumps(uuids))
"""

# Profiles of a card with seven compute slices by their driver's number, with their size in memory slices, and those of
# compute instances by NVML's number.
ONE, TWO, THREE = (19, 1), (14, 2), (9, 4)
C1, C2, C3 = 0, 1, 2


def create_partitions(
    state: Path, card: int, layout: Sequence[tuple[tuple[int, int], int, Sequence[int]]]
) -> list[str]:
    """Partition a card into (profile, first memory slice, compute instances); return the UUIDs of all its MIG devices."""
    rows = [[profile, start, size, list(parts)] for (profile, size), start, parts in layout]
    done = subprocess.run(
        [sys.executable, "-c", _CUT, json.dumps([card, rows])],
        env=os.environ | {"CALABASH_SIM": str(state), "LD_LIBRARY_PATH": str(simulated_library_dir())},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    uuids: list[str] = json.loads(done.stdout)
    return uuids
