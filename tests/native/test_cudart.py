"""Tests with programs as users build them: images of the real CUDA compiler, and NVIDIA's own runtime.

Before it works, the runtime library has the driver prove over a private table that it is NVIDIA's. The simulator does
not imitate that proof, so programs of the runtime API run on real cards only (`gpu`); on the simulator they end with
a clear error. The driver API needs no such proof, and the compiler's images run on both.
"""

from __future__ import annotations

import ctypes
import functools
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest
from tests.compiled import compiled
from tests.native.shim_world import GIB, SIMGPU, World

PROGRAMS = Path(__file__).resolve().parent / "programs"
NVIDIA = Path(sysconfig.get_paths()["purelib"]) / "nvidia"
NVCC = NVIDIA / "cu13" / "bin" / "nvcc"
RUNTIMES = {
    "13": (NVIDIA / "cu13", "libcudart.so.13"),
    "12": (NVIDIA / "cuda_runtime", "libcudart.so.12"),
}
CHECKS = ("devices", "copies", "pools", "kernels", "events", "graphs", "entry", "reset")
STRICT = ("-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Wshadow", "-Werror")
SYSTEM_LIBRARIES = ("-ldl", "-lrt", "-lpthread", "-lm")
NVCC_IMAGES = {
    "ptx": ("-ptx", "-arch=compute_80"),
    "cubin": ("-cubin", "-arch=sm_80"),
    "fatbin": ("-fatbin", "-gencode=arch=compute_80,code=sm_80", "-gencode=arch=compute_90,code=compute_90"),
    "ptx in a fatbin": ("-fatbin", "-gencode=arch=compute_75,code=compute_75"),
    "uncompressed fatbin": ("-fatbin", "-no-compress", "-arch=sm_80"),
    "of another card": ("-fatbin", "-arch=sm_90"),
}


needs_nvcc = pytest.mark.skipif(shutil.which("g++") is None, reason="the CUDA compiler needs g++")


def build(name: str, *command: str | Path) -> Path:
    """Run a compiler whose last arguments become ``-o FILE``."""
    return compiled(name, command)


@functools.cache
def image(kind: str) -> Path:
    return build(kind.replace(" ", "-"), NVCC, *NVCC_IMAGES[kind], PROGRAMS / "image_kernels.cu")


@functools.cache
def image_program() -> Path:
    source = PROGRAMS / "image_program.c"
    link = (f"-L{SIMGPU}", "-l:libcuda.so.1")
    return build("image_program", "gcc", *STRICT, "-isystem", NVIDIA / "cu13/include", source, *link)


@functools.cache
def runtime_program(version: str, linking: str) -> Path:
    home, shared = RUNTIMES[version]
    include = ("-isystem", home / "include", "-isystem", NVIDIA / "cu13/include")  # 12.9 has no crt/ of its own
    library = home / "lib" / (shared if linking == "shared" else "libcudart_static.a")
    arguments = (*STRICT, *include, PROGRAMS / "cudart_program.c", library, *SYSTEM_LIBRARIES)
    return build(f"cudart_{version}_{linking}", "gcc", *arguments, f"-Wl,-rpath,{home / 'lib'}")


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World.create(tmp_path, "2xA100-40GB")


@needs_nvcc
@pytest.mark.parametrize("loader", ["module", "library"])
@pytest.mark.parametrize("kind", [kind for kind in NVCC_IMAGES if kind != "of another card"])
def test_what_the_real_compiler_makes_loads_and_computes_on_a_simulated_card(
    world: World, kind: str, loader: str
) -> None:
    command = [str(image_program()), str(image(kind)), loader]
    done = subprocess.run(command, env=world.environment(), capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


@needs_nvcc
@pytest.mark.parametrize("loader", ["module", "library"])
def test_same_program_runs_unchanged_on_a_slice(world: World, loader: str) -> None:
    slot = world.slot(cap=GIB)
    assert slot.run(image_program(), image("fatbin"), loader) == "done"


@needs_nvcc
def test_image_without_code_for_this_card_is_refused_as_a_driver_refuses_it(world: World) -> None:
    command = [str(image_program()), str(image("of another card")), "module"]
    done = subprocess.run(command, env=world.environment(), capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert done.stderr.strip().endswith("209")


@needs_nvcc
def test_damaged_image_is_an_error_and_no_crash(world: World, tmp_path: Path) -> None:
    for kind in ("fatbin", "ptx in a fatbin", "uncompressed fatbin", "cubin"):
        whole = image(kind).read_bytes()
        for sound in (10, 50, len(whole) // 4):
            damaged = tmp_path / "damaged"
            damaged.write_bytes(whole[:sound] + bytes(b ^ 0x5A for b in whole[sound:]))
            command = [str(image_program()), str(damaged), "module"]
            done = subprocess.run(command, env=world.environment(), capture_output=True, check=False, timeout=60)
            assert done.returncode == 1, f"{kind} damaged after {sound} bytes ended with {done.returncode}"


@functools.cache
def resolved_program() -> Path:
    source = PROGRAMS / "resolved_program.c"
    return build("resolved_program", "gcc", *STRICT, "-isystem", NVIDIA / "cu13/include", source, "-ldl", "-lpthread")


@pytest.mark.parametrize("check", ["memory", "pools", "events", "graphs", "names", "default-stream"])
@pytest.mark.parametrize("version", ["12000", "12090", "13000"])
@pytest.mark.parametrize("flags", ["1", "2"], ids=["legacy", "per-thread"])
def test_program_that_resolves_everything_at_run_time_works_bare_and_on_a_slice(
    world: World, check: str, version: str, flags: str
) -> None:
    command = [str(resolved_program()), check, version, flags]
    done = subprocess.run(command, env=world.environment(), capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    assert world.slot(cap=GIB).run(*command) == "done"


@pytest.mark.parametrize("linking", ["shared", "static"])
@pytest.mark.parametrize("version", RUNTIMES)
def test_nvidias_runtime_ends_with_a_clear_error_on_a_simulated_card(world: World, version: str, linking: str) -> None:
    command = [str(runtime_program(version, linking)), "devices"]
    done = subprocess.run(command, env=world.environment(), capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert "cudaGetDeviceCount(&count): cudaErrorNotSupported" in done.stderr
    listed = [str(SIMGPU / "calabash-simctl"), "unserved", str(world.path / "node.state")]
    assert "cuGetExportTable" in subprocess.run(listed, capture_output=True, text=True, check=True).stdout


def real_card() -> bool:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int(0)
    return driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0


@pytest.mark.gpu
@pytest.mark.skipif(not Path("/dev/nvidiactl").exists(), reason="no real card on this machine")
@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("linking", ["shared", "static"])
@pytest.mark.parametrize("version", RUNTIMES)
def test_program_of_the_runtime_does_its_work_on_a_real_card(version: str, linking: str, check: str) -> None:
    assert real_card()
    command = [str(runtime_program(version, linking)), check]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("done\n")
