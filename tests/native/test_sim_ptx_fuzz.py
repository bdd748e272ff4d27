"""Fuzz test of the PTX compiler and interpreter under sanitizers: damaged text gives an error or a kernel that runs.

``CALABASH_FUZZ_ROUNDS`` sets the number of rounds, ``CALABASH_FUZZ_SEED`` the seed.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from tests.compiled import built
from tests.native.ptx_mixed import seeds
from tests.native.sim_cuda_programs import ROOT
from tests.native.test_sim_cuda_sanitized import FLAGS, compile_all

ROUNDS = int(os.environ.get("CALABASH_FUZZ_ROUNDS", "2000"))
SEED = os.environ.get("CALABASH_FUZZ_SEED", "1")
LIMITS = "allocator_may_return_null=1:hard_rss_limit_mb=2048"


def compile_fuzzer(directory: Path) -> None:
    sources = [
        *sorted((ROOT / "native" / "sim" / "ptx").glob("*.c")),
        ROOT / "tests" / "native" / "sim_ptx_fuzz.c",
    ]
    include = [f"-I{ROOT / 'native'}", "-O1", "-fno-strict-aliasing"]
    compile_all(directory / "sim_ptx_fuzz", *include, *map(str, sources), "-lm")


def test_damaged_ptx_is_an_error_or_runs_and_never_a_fault(tmp_path: Path) -> None:
    files = []
    for number, text in enumerate(seeds()):
        files.append(tmp_path / f"{number}.ptx")
        files[-1].write_text(text)
    last = tmp_path / "last.ptx"
    done = subprocess.run(
        [built("sim-ptx-fuzz", FLAGS, compile_fuzzer) / "sim_ptx_fuzz", str(ROUNDS), SEED, last, *files],
        capture_output=True,
        text=True,
        env={**os.environ, "ASAN_OPTIONS": LIMITS},
        timeout=300 + ROUNDS / 20,
        check=False,
    )
    damaged = last.read_text(errors="replace")[-4000:] if last.exists() else ""
    assert done.returncode == 0, f"{done.stderr[-4000:]}\n--- the text ---\n{damaged}"
    assert f"{len(files)} of {len(files)} seeds compile" in done.stdout, done.stdout
    compiled = re.search(r"rounds: (\d+) compiled, (\d+) ran", done.stdout)
    assert compiled is not None
    assert int(compiled[1]) > ROUNDS // 20, done.stdout
    assert int(compiled[2]) > ROUNDS // 50, done.stdout
