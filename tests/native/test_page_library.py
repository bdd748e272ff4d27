"""Tests of the agent's page library against a tenant that truncates the page during a call."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.compiled import compiled

import calabash

LIBRARY = Path(calabash.__file__).parent / "_native" / "lib" / "libcalabash-page.so"
_PROBE = """
import ctypes, mmap, os, sys
path, library = sys.argv[1], ctypes.CDLL(sys.argv[2])
size = 1 << 20
with open(path, "wb") as made:
    made.truncate(size)
descriptor = os.open(path, os.O_RDWR)
page = mmap.mmap(descriptor, size)
address = ctypes.addressof(ctypes.c_char.from_buffer(page))
library.cb_page_reap.argtypes = [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_int32, ctypes.c_uint64]
library.cb_page_set_host_pid.argtypes = [ctypes.c_void_p] + [ctypes.c_uint32] * 2 + [ctypes.c_int32]
print("whole", library.cb_page_reap(address, 3, 0, 7, 9))
os.ftruncate(descriptor, 0)
for _ in range(3):
    print("gone", library.cb_page_reap(address, 3, 0, 7, 9), library.cb_page_set_host_pid(address, 3, 0, 0))
if len(sys.argv) > 3:
    page[0]
"""


def probe(tmp_path: Path, *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", _PROBE, str(tmp_path / "usage"), str(LIBRARY), *more]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_truncated_usage_file_ends_the_call_but_not_the_agent(tmp_path: Path) -> None:
    done = probe(tmp_path)
    assert done.returncode == 0, done.stderr
    first, *rest = done.stdout.splitlines()
    assert first.startswith("whole 0")
    assert rest == ["gone -1 -1"] * 3


def test_fault_outside_the_library_ends_the_process(tmp_path: Path) -> None:
    done = probe(tmp_path, "touch")
    assert done.returncode == -7
    assert done.stdout.count("gone") == 3


def program(name: str) -> Path:
    native = Path(__file__).parents[2] / "native"
    flags = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread", f"-I{native}"]
    return compiled(name, ["gcc", *flags, Path(__file__).parent / f"{name}.c", LIBRARY, f"-Wl,-rpath,{LIBRARY.parent}"])


def test_orders_are_read_whole_and_counters_stay_exact(tmp_path: Path) -> None:
    check = program("page_check")
    done = subprocess.run([check, tmp_path / "usage"], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (0, "good\n"), done.stderr


def test_tenant_that_overwrites_its_page_does_not_block_the_agent(tmp_path: Path) -> None:
    command: list[str | Path] = [program("page_siege"), tmp_path / "usage", "200"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout
    assert int(done.stdout) < 20_000
