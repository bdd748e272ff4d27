"""The worker under address and undefined-behaviour sanitizers, told what programs say, changed in many ways."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.native.remote_fuzzing import feed, fuzzer, record
from tests.native.sim_cuda_programs import CudaNode

SESSIONS = 60


@pytest.mark.slow
def test_no_frame_makes_the_worker_touch_what_is_not_its_own(tmp_path: Path) -> None:
    node = CudaNode(tmp_path / "node.state", "A100-40GB,T4")
    record(node, tmp_path / "recording")
    is_random = os.environ.get("CALABASH_EXAMPLES") == "random"
    seed = int.from_bytes(os.urandom(4), "little") if is_random else 1
    said, changed, _, _, locked, ordinary = feed(fuzzer(), tmp_path / "recording", node, seed=seed, sessions=SESSIONS)
    node.close()
    assert said > 20_000
    assert changed > 1_000
    assert locked > 10 * ordinary  # no more is locked for one session than it may have
