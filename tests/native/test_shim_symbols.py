"""Tests of symbol look-up: each way to find the driver gives the hook; all else behaves as without the shim."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.native.machine import marked
from tests.native.shim_world import GIB, OUT_OF_MEMORY, ROOT, SHIM, SIMGPU, SUCCESS, Slot, World, program

WAYS = (
    "handle",
    "default",
    "next",
    "versioned",
    "deepbind",
    "namespace",
    "address_v1",
    "address",
    "address_ptsz",
    "lookup_versioned",
    "lookup_next",
    "lookup_libc",
)


@pytest.fixture
def slot(tmp_path: Path) -> Slot:
    return World.create(tmp_path).slot(cap=GIB)


def names(file: str) -> set[str]:
    lines = (ROOT / "native/shim" / file).read_text().splitlines()
    return {line.strip() for line in lines if line and not line.startswith("#")}


def exported() -> set[str]:
    listing = subprocess.run(["nm", "-D", "--defined-only", str(SHIM)], check=True, capture_output=True, text=True)
    return {line.split()[-1] for line in listing.stdout.splitlines()}


def test_library_exports_its_hooks_and_the_dynamic_linkers_names_and_nothing_else() -> None:
    assert exported() == names("hooks.txt") | names("denied.txt") | {"dlsym", "dlvsym", "dlopen", "dlmopen"}


def test_library_needs_no_younger_c_library_than_2_17() -> None:
    listing = subprocess.run(["objdump", "-T", str(SHIM)], check=True, capture_output=True, text=True).stdout
    versions = {tuple(int(n) for n in v.split(".")) for v in re.findall(r"GLIBC_([0-9.]+)", listing)}
    assert versions
    assert max(versions) <= (2, 17)


def test_library_needs_no_other_library_than_the_c_library() -> None:
    listing = subprocess.run(["readelf", "-d", str(SHIM)], check=True, capture_output=True, text=True).stdout
    assert re.findall(r"NEEDED.*\[(.*)\]", listing) == ["libc.so.6"]


@pytest.mark.parametrize("way", marked(WAYS, {"address_ptsz", "lookup_next"}))
def test_program_that_looks_the_driver_up_is_held_to_its_cap(slot: Slot, way: str) -> None:
    assert slot.run(program("finder"), way, str(2 * GIB)) == str(OUT_OF_MEMORY)
    assert slot.run(program("finder"), way, str(GIB // 2)) == str(SUCCESS)
    assert slot.usage.device(0).denied_count == 1


@pytest.mark.aarch64
def test_program_that_opens_the_driver_by_its_path_is_held_to_its_cap(slot: Slot) -> None:
    path = SIMGPU / "libcuda.so.1"
    assert slot.run(program("finder"), "handle", str(2 * GIB), str(path)) == str(OUT_OF_MEMORY)


@pytest.mark.aarch64
def test_program_that_opens_a_copy_of_the_driver_is_held_to_its_cap(slot: Slot, tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere" / "mydriver.so"
    copy.parent.mkdir()
    shutil.copy(SIMGPU / "libcuda.so.1", copy)
    assert slot.run(program("finder"), "handle", str(2 * GIB), str(copy)) == str(OUT_OF_MEMORY)
    assert slot.run(program("finder"), "namespace", str(2 * GIB), str(copy)) == str(OUT_OF_MEMORY)


def test_what_is_no_driver_is_opened_in_the_namespace_that_was_asked_for(slot: Slot) -> None:
    """The program itself is not in that namespace, so a name that only the program has is not found there."""
    script = (
        "import ctypes; libc = ctypes.CDLL(None); libc.dlmopen.restype = ctypes.c_void_p;"
        "libc.dlsym.restype = ctypes.c_void_p; libc.dlsym.argtypes = [ctypes.c_void_p, ctypes.c_char_p];"
        "libc.dlmopen.argtypes = [ctypes.c_long, ctypes.c_char_p, ctypes.c_int];"
        "other = libc.dlmopen(-1, b'libm.so.6', 2); here = ctypes.CDLL('libm.so.6');"
        "print(libc.dlsym(other, b'cos') != libc.dlsym(here._handle, b'cos'), libc.dlmopen(-1, b'/nowhere.so', 2))"
    )
    assert slot.run("python3", "-c", script) == "True None"


@pytest.mark.aarch64
def test_linked_program_is_held_to_its_cap(slot: Slot) -> None:
    assert slot.tenant("alloc", 2 * GIB) == str(OUT_OF_MEMORY)
    assert slot.tenant("alloc", GIB // 2) == str(SUCCESS)


def test_other_names_are_looked_up_as_if_the_shim_were_not_there(slot: Slot) -> None:
    """dlsym with RTLD_NEXT and RTLD_DEFAULT, dlvsym, dlerror: the same results with and without the shim."""
    checker = program("lookups", "-ldl")
    plain = subprocess.run([str(checker)], check=True, capture_output=True, text=True).stdout.strip()
    assert slot.run(checker) == plain
    assert "next malloc: libc.so.6" in plain


def test_programs_that_never_touch_a_gpu_need_no_slot() -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", "echo fine"], env={"LD_PRELOAD": str(SHIM)}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "fine\n", "")


def asked() -> list[str]:
    """Return every name of the driver API at each version where its answer changes, one before it, and both defaults."""
    rows = [line.split("\t") for line in (ROOT / "native/api/cuda.tsv").read_text().splitlines() if line[0] != "#"]
    versions = {(base, int(version) + step) for _, base, version, *_ in rows for step in (-10, 0, 1000)}
    return [f"{base} {version} {flags}" for base, version in sorted(versions) for flags in (0, 1, 2)]


@pytest.mark.aarch64
def test_every_answer_of_the_driver_keeps_its_version_default_stream_and_status(slot: Slot) -> None:
    """The shim returns the hook of the very function that the driver alone would have returned, or that function."""
    questions = asked()

    def answers(environment: dict[str, str]) -> list[list[str]]:
        done = subprocess.run(
            [str(program("addresses"))],
            input="\n".join(questions),
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        return [line.split() for line in done.stdout.splitlines()]

    hooks, exchanged = names("hooks.txt"), 0
    for question, alone, shimmed in zip(
        questions, answers(slot.world.environment()), answers(slot.environment()), strict=True
    ):
        assert shimmed[:3] == alone[:3], f"{question}: {shimmed}, not {alone}"
        hooked = alone[2] in hooks
        assert shimmed[3] == (SHIM.name if hooked else alone[3]), f"{question}: {shimmed}"
        exchanged += hooked
    assert exchanged > 200
