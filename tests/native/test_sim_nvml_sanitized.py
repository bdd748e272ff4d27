"""Tests of the simulated NVML under address and undefined-behaviour sanitizers, with invalid calls."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tests.compiled import compiled
from tests.native.simnode import ROOT, Node, compile_holder, simctl

HEADERS = next((ROOT / ".venv").glob("lib/python3*/site-packages/nvidia/cu13/include"))


@pytest.fixture(scope="module")
def fuzzer() -> Path:
    source = ROOT / "native/sim"
    files = [*source.glob("node/*.c"), *(f for f in source.glob("nvml/*.c") if f.name != "unserved.c")]
    files.append(ROOT / "build/native/api/sim_cards.c")
    return compiled(
        "sim_nvml_fuzz",
        [
            *(
                "gcc",
                "-std=gnu11",
                "-O1",
                "-g",
                "-pthread",
                "-fsanitize=address,undefined",
                "-fno-sanitize-recover=all",
            ),
            *("-Wno-deprecated-declarations", f"-I{ROOT / 'native'}", "-isystem", str(HEADERS)),
            *(str(f) for f in (ROOT / "tests/native/sim_nvml_fuzz.c", *files)),
            "-lm",
        ],
    )


@pytest.mark.slow
def test_no_call_however_wrong_reads_or_writes_where_it_should_not(fuzzer: Path, tmp_path: Path) -> None:
    node = Node(tmp_path / "n", "2xA100-40GB,P40", compile_holder())
    node.inject(1, "ecc-double")
    for seed in (1, 2):
        done = subprocess.run(
            [fuzzer, str(seed), "400"], env=node.environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr[-4000:]
        assert int(done.stdout.split()[1]) > 20, "the layout hardly changed, so nothing was tried"
    assert simctl("show", node.state, "--json").returncode == 0
    instances = node.show()["devices"][0]["gpu_instances"]
    taken = [s for gi in instances for s in range(gi["start"], gi["start"] + gi["size"])]
    assert len(taken) == len(set(taken)), "two instances share a memory slice"
    assert all(s < 8 for s in taken)
    node.close()
