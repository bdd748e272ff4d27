"""The native libraries for aarch64, built by a cross compiler and run by an emulator of that machine.

An emulator on x86-64 shows that code is right for the instruction set, and less of how memory is ordered than a real
machine does: the orders are argued for where they are written.
"""

from __future__ import annotations

import fcntl
import functools
import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest
from tests.compiled import compiled

ROOT = Path(__file__).resolve().parents[2]
PREFIX = "aarch64-linux-gnu-"
SYSTEM = Path("/usr/aarch64-linux-gnu")
OUT = ROOT / "build/native-aarch64/_native"
# Without a bound the emulator keeps books of each page of the 8 TiB that the simulated driver reserves.
SPACE = str(128 << 30)
STRICT = ("-std=gnu11", "-O2", "-mno-outline-atomics", "-pthread", "-Wall", "-Wextra", "-Wshadow", "-Werror")

pytestmark = pytest.mark.skipif(
    shutil.which(f"{PREFIX}gcc") is None or shutil.which("qemu-aarch64") is None or not (SYSTEM / "include").is_dir(),
    reason="needs gcc-aarch64-linux-gnu, libc6-dev-arm64-cross and qemu-user: tools/bootstrap --tests",
)


@functools.cache
def libraries() -> Path:
    """Everything that ``make native`` builds, for aarch64."""
    lock = ROOT / "build/cross.lock"
    lock.parent.mkdir(exist_ok=True)
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        command = ["make", "-s", "-j2", "-C", str(ROOT / "native"), f"CROSS={PREFIX}"]
        plain = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "OUT", "BUILD", "CC")}
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280, env=plain)
        assert done.returncode == 0, done.stderr
    return OUT


def program(name: str, source: str, *more: str | Path) -> Path:
    return compiled(name, [f"{PREFIX}gcc", *STRICT, f"-I{ROOT / 'native'}", ROOT / "tests/native" / source, *more])


def emulated(*command: str | Path) -> subprocess.CompletedProcess[str]:
    words = ["qemu-aarch64", "-R", SPACE, "-L", str(SYSTEM), *map(str, command)]
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)


def needed(library: Path) -> list[str]:
    command = [f"{PREFIX}readelf", "-d", str(library)]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [line.split("[")[1].rstrip("]") for line in listing.splitlines() if "(NEEDED)" in line]


def test_every_library_builds_and_needs_nothing_beyond_the_c_library() -> None:
    built = libraries()
    names = ("lib/libcalabash.so", "lib/libcalabash-page.so", "simgpu/libcuda.so.1", "simgpu/libnvidia-ml.so.1")
    for name in names:
        assert set(needed(built / name)) <= {"libc.so.6", "libm.so.6", "ld-linux-aarch64.so.1"}, name


def test_the_page_library_keeps_its_books(tmp_path: Path) -> None:
    library = libraries() / "lib/libcalabash-page.so"
    check = program("page_check_aarch64", "page_check.c", library, f"-Wl,-rpath,{library.parent}")
    done = emulated(check, tmp_path / "usage")
    assert (done.returncode, done.stdout) == (0, "good\n"), done.stderr


def test_kills_in_a_storm_of_reservations_leave_exact_books() -> None:
    done = emulated(program("charge_storm_aarch64", "shim/charge_storm.c"), "300", "4", "20261122")
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout.split()[0]) > 300


def test_a_simulated_node_is_made_and_shown(tmp_path: Path) -> None:
    simctl = libraries() / "simgpu/calabash-simctl"
    made = emulated(simctl, "create", tmp_path / "node.state", "--gpus", "H100,T4", "--seed", "1")
    assert made.returncode == 0, made.stderr
    shown = emulated(simctl, "show", tmp_path / "node.state")
    assert shown.returncode == 0, shown.stderr
    assert "H100" in shown.stdout


def test_names_are_looked_up_as_without_the_shim() -> None:
    lookups = program("lookups_aarch64", "shim/lookups.c", "-ldl")
    plain = emulated(lookups)
    assert plain.returncode == 0, plain.stderr
    assert "next malloc: libc.so.6" in plain.stdout
    through = emulated("-E", f"LD_PRELOAD={libraries() / 'lib/libcalabash.so'}", lookups)
    assert (through.returncode, through.stdout) == (0, plain.stdout), through.stderr


@pytest.mark.parametrize("check", ["linear", "host", "pool", "mapped", "array", "context_end", "illegal"])
def test_memory_of_the_simulated_driver(tmp_path: Path, check: str) -> None:
    simgpu, state = libraries() / "simgpu", tmp_path / "node.state"
    include = Path(sysconfig.get_paths()["purelib"]) / "nvidia/cu13/include"
    checker = program("memory_aarch64", "sim_cuda_memory.c", "-isystem", include, simgpu / "libcuda.so.1", "-lm")
    made = emulated(simgpu / "calabash-simctl", "create", state, "--gpus", "A100-40GB,T4", "--seed", "1")
    assert made.returncode == 0, made.stderr
    done = emulated("-E", f"LD_LIBRARY_PATH={simgpu}", "-E", f"CALABASH_SIM={state}", checker, check)
    assert done.returncode == 0, done.stderr
