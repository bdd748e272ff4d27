"""Fuzz test of the worker under address and undefined-behaviour sanitizers, with mutated frames of programs."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from tests.compiled import built, compiled
from tests.native.remote_fuzzing import FLAGS, INCLUDE, ROOT, feed, fuzzer, record
from tests.native.sim_cuda_programs import STRICT, CudaNode

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


@pytest.mark.parametrize("command", ["copies", "refused", "ended", "forked"])
def test_interface_of_tls_makes_no_invalid_access(command: str) -> None:
    def make(out: Path) -> None:
        variables = [f"BUILD={out}/objects", f"OUT={out}", f"EXTRA_CFLAGS={FLAGS}"]
        native = ["make", "-s", "-C", str(ROOT / "native"), *variables]
        subprocess.run([*native, f"{out}/remote/libcalabash-tls.so"], check=True)
        sources = [Path(__file__).with_name("remote_tls.c"), ROOT / "native/remote/wire/tls.c"]
        compile_program: list[str | Path] = ["gcc", *STRICT, *FLAGS.split(), f"-I{ROOT}/native", *sources, "-ldl"]
        subprocess.run([*compile_program, "-o", out / "remote/remote_tls"], check=True)

    program = built("remote-tls-sanitized", [FLAGS], make) / "remote/remote_tls"
    done = subprocess.run([program, command], capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


def test_pages_that_the_driver_does_not_lock_are_forgotten() -> None:
    headers: list[str | Path] = [
        f"-I{ROOT}/native",
        f"-I{ROOT}/build/native",
        f"-I{ROOT}/build/native/remote",
        "-isystem",
        INCLUDE,
    ]
    sources = [Path(__file__).with_name("remote_pinned.c"), ROOT / "native" / "remote" / "worker" / "pinned.c"]
    program = compiled("remote_pinned", ["gcc", *STRICT, *FLAGS.split(), *headers, *sources])
    subprocess.run([program], check=True, timeout=60)
