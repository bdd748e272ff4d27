"""Tests of the simulated CUDA driver under address and undefined-behaviour sanitizers."""

from __future__ import annotations

import functools
import subprocess
from pathlib import Path

import pytest
from tests.compiled import built
from tests.native.sim_cuda_programs import INCLUDE, ROOT, STRICT, CudaNode
from tests.native.test_cudart import image
from tests.native.test_sim_cuda import MEMORY, ORDER

FLAGS = ("-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")


def compile_all(out: Path, *arguments: str) -> None:
    command = ["gcc", *STRICT, *FLAGS, "-isystem", str(INCLUDE), *arguments, "-o", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@functools.cache
def sanitized() -> Path:
    """Return a directory with the instrumented driver and programs."""
    return built("sim-cuda-sanitized", FLAGS, compile_sanitized)


def compile_sanitized(directory: Path) -> None:
    generated = ROOT / "build" / "native"
    sources = [
        *sorted((ROOT / "native" / "sim" / "cuda").rglob("*.c")),
        *sorted((ROOT / "native" / "sim" / "ptx").glob("*.c")),
        *sorted((ROOT / "native" / "image").glob("*.c")),
        *sorted((ROOT / "native" / "sim" / "node").glob("*.c")),
        *(
            generated / "api" / f"{name}.c"
            for name in ("sim_cuda_stubs", "sim_cuda_table", "cuda_resolve", "sim_cards")
        ),
    ]
    include = [f"-I{ROOT / 'native'}", f"-I{generated}"]
    link = ["-Wl,-soname,libcuda.so.1", "-Wl,-Bsymbolic", f"-Wl,--version-script={generated}/api/sim_cuda.map"]
    compile_all(
        directory / "libcuda.so.1",
        "-shared",
        "-fPIC",
        "-fvisibility=hidden",
        *link,
        *include,
        *map(str, sources),
        "-lm",
    )
    readers = [str(p) for p in sources if p.parent.name == "image"]
    compile_all(directory / "sim_cuda_fuzz", *include, str(ROOT / "tests" / "native" / "sim_cuda_fuzz.c"), *readers)
    for name in ("sim_cuda_memory", "sim_cuda_order", "sim_cuda_ends"):
        compile_all(
            directory / name, str(ROOT / "tests" / "native" / f"{name}.c"), str(directory / "libcuda.so.1"), "-lm"
        )


@pytest.mark.parametrize(
    ("name", "checks"), [("sim_cuda_memory", MEMORY), ("sim_cuda_order", ORDER)], ids=["memory", "order"]
)
def test_every_check_passes_under_the_sanitizers(tmp_path: Path, name: str, checks: dict[str, str]) -> None:
    node = CudaNode(tmp_path / "node.state", "A100-40GB,T4")
    directory = sanitized()
    # The driver keeps its tables for the life of the process; what the checks leave is not looked at.
    environment = node.environment(LD_LIBRARY_PATH=str(directory), ASAN_OPTIONS="detect_leaks=0")
    for check in checks.values():
        done = subprocess.run(
            [directory / name, check], capture_output=True, text=True, env=environment, timeout=60, check=False
        )
        assert done.returncode == 0, f"{check}: exit {done.returncode}\n{done.stderr[-4000:]}"


def test_context_ends_while_another_thread_uses_what_is_in_it(tmp_path: Path) -> None:
    node = CudaNode(tmp_path / "node.state", "T4")
    environment = node.environment(LD_LIBRARY_PATH=str(sanitized()), ASAN_OPTIONS="detect_leaks=0")
    done = subprocess.run(
        [sanitized() / "sim_cuda_ends", "400"],
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]


def test_damaged_images_of_every_kind_are_read_within_their_bounds() -> None:
    kinds = ("ptx", "cubin", "fatbin", "uncompressed fatbin", "ptx in a fatbin")
    files = [str(image(kind)) for kind in kinds]
    done = subprocess.run(
        [sanitized() / "sim_cuda_fuzz", "3000", *files], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.count(" read") == len(kinds)
