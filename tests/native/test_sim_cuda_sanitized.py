"""The checks of the simulated CUDA driver under the address and undefined-behaviour sanitizers."""

from __future__ import annotations

import functools
import os
import subprocess
from pathlib import Path

import pytest
from tests.native.sim_cuda_programs import BUILD, INCLUDE, ROOT, STRICT, CudaNode
from tests.native.test_sim_cuda import MEMORY, ORDER

SANITIZED = BUILD / "sanitized"
FLAGS = ("-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")


def compile_all(out: str, *arguments: str) -> None:
    temporary = SANITIZED / f"{out}.{os.getpid()}"
    command = ["gcc", *STRICT, *FLAGS, "-isystem", str(INCLUDE), *arguments, "-o", str(temporary)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    temporary.rename(SANITIZED / out)


@functools.cache
def sanitized() -> Path:
    """A directory with the driver and the programs, instrumented."""
    SANITIZED.mkdir(parents=True, exist_ok=True)
    generated = ROOT / "build" / "native"
    sources = [
        *sorted((ROOT / "native" / "simgpu").glob("cuda_*.c")),
        *sorted((ROOT / "native" / "simgpu").glob("image*.c")),
        *(ROOT / "native" / "simgpu" / f"{name}.c" for name in ("kernels", "state", "engine")),
        *(generated / "api" / f"{name}.c" for name in ("sim_cuda_stubs", "sim_cuda_table", "cuda_resolve")),
    ]
    link = ["-Wl,-soname,libcuda.so.1", "-Wl,-Bsymbolic", f"-Wl,--version-script={generated}/api/sim_cuda.map"]
    include = [f"-I{ROOT / 'native'}", f"-I{generated}"]
    compile_all("libcuda.so.1", "-shared", "-fPIC", "-fvisibility=hidden", *link, *include, *map(str, sources))
    for name in ("sim_cuda_memory", "sim_cuda_order"):
        compile_all(name, str(ROOT / "tests" / "native" / f"{name}.c"), str(SANITIZED / "libcuda.so.1"), "-lm")
    return SANITIZED


@pytest.mark.parametrize(
    ("name", "checks"), [("sim_cuda_memory", MEMORY), ("sim_cuda_order", ORDER)], ids=["memory", "order"]
)
def test_every_check_passes_under_the_sanitizers(tmp_path: Path, name: str, checks: dict[str, str]) -> None:
    node = CudaNode(tmp_path / "node.state", "A100-40GB")
    directory = sanitized()
    # The driver keeps its tables for the life of the process; what the checks leave is not looked at.
    environment = node.environment(LD_LIBRARY_PATH=str(directory), ASAN_OPTIONS="detect_leaks=0")
    for check in checks.values():
        done = subprocess.run(
            [directory / name, check], capture_output=True, text=True, env=environment, timeout=60, check=False
        )
        assert done.returncode == 0, f"{check}: exit {done.returncode}\n{done.stderr[-4000:]}"
