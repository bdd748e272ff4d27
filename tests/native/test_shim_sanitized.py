"""Tests of the shim under address and undefined-behaviour sanitizers, with the programs of the other tests."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tests.compiled import built
from tests.native.shim_world import GIB, OUT_OF_MEMORY, ROOT, World, program


@pytest.fixture(scope="module")
def preload() -> str:
    """Return the sanitizers' run-time libraries, and the shim built with them, for LD_PRELOAD."""
    flags = "-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer"

    def make(out: Path) -> None:
        variables = [f"BUILD={out}/objects", f"OUT={out}", f"EXTRA_CFLAGS={flags}"]
        subprocess.run(["make", "-s", "-C", str(ROOT / "native"), *variables, f"{out}/lib/libcalabash.so"], check=True)

    library = built("shim-sanitized", [flags], make) / "lib/libcalabash.so"
    runtimes = [
        subprocess.run(["gcc", f"-print-file-name={name}"], check=True, capture_output=True, text=True).stdout.strip()
        for name in ("libasan.so", "libubsan.so")
    ]
    return " ".join([*runtimes, str(library)])


@pytest.mark.slow
@pytest.mark.parametrize(
    "action",
    [
        *("init", "view", "families 3000000", "fill linear 50000000", "threads 6", "contexts", "vmm", "hammer 2 7"),
        *("fork 5000000", "late-fork 3000000", "exec 5000000", "graph 5000000", "capture 5000000"),
    ],
)
def test_no_action_of_a_program_makes_the_shim_touch_what_is_not_its_own(
    preload: str, tmp_path: Path, action: str
) -> None:
    slot = World.create(tmp_path).slot(cap=GIB)
    slot.run(*slot.tenant_command(*action.split()), LD_PRELOAD=preload, ASAN_OPTIONS="detect_leaks=0")


@pytest.mark.slow
@pytest.mark.parametrize("way", ["address", "default", "next", "handle"])
def test_every_way_to_the_driver_is_sound(preload: str, tmp_path: Path, way: str) -> None:
    slot = World.create(tmp_path).slot(cap=GIB)
    answer = slot.run(program("finder"), way, str(2 * GIB), LD_PRELOAD=preload, ASAN_OPTIONS="detect_leaks=0")
    assert answer == str(OUT_OF_MEMORY)
