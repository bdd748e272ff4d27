"""Tests of the native libraries for aarch64, built by a cross compiler and run by an emulator.

An emulator on x86-64 shows that code is right for the instruction set, and less about memory ordering than a real
machine: the required orders are explained in the sources.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.compiled import compiled
from tests.native.machine import AVAILABLE, EMULATOR, PREFIX, ROOT, cross_libraries

STRICT = ("-std=gnu11", "-O2", "-mno-outline-atomics", "-pthread", "-Wall", "-Wextra", "-Wshadow", "-Werror")
# With instructions that exchange at once (as Grace has them), and without: the step-by-step way of pair.h.
CORES = {"max": "ARMv9 with LSE", "cortex-a57": "ARMv8.0"}

pytestmark = pytest.mark.skipif(
    not AVAILABLE,
    reason="needs gcc-aarch64-linux-gnu, libc6-dev-arm64-cross and qemu-user: tools/bootstrap --tests",
)


def program(name: str, source: str, *more: str | Path) -> Path:
    return compiled(name, [f"{PREFIX}gcc", *STRICT, f"-I{ROOT / 'native'}", ROOT / "tests/native" / source, *more])


def emulated(*command: str | Path, core: str = "max") -> subprocess.CompletedProcess[str]:
    words = [*EMULATOR, "-cpu", core, *map(str, command)]
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)


def needed(library: Path) -> list[str]:
    command = [f"{PREFIX}readelf", "-d", str(library)]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [line.split("[")[1].rstrip("]") for line in listing.splitlines() if "(NEEDED)" in line]


def test_every_library_builds_and_needs_nothing_beyond_the_c_library() -> None:
    built = cross_libraries()
    names = [
        f"{directory}/{name}" for directory in ("simgpu", "remote") for name in ("libcuda.so.1", "libnvidia-ml.so.1")
    ]
    names += ["lib/libcalabash.so", "lib/libcalabash-page.so", "remote/calabash-worker", "remote/libcalabash-tls.so"]
    for name in names:
        assert set(needed(built / name)) <= {"libc.so.6", "libm.so.6", "ld-linux-aarch64.so.1"}, name


def with_page_library(name: str) -> Path:
    library = cross_libraries() / "lib/libcalabash-page.so"
    return program(f"{name}_aarch64", f"{name}.c", library, f"-Wl,-rpath,{library.parent}")


@pytest.mark.parametrize("core", CORES, ids=CORES.values())
def test_orders_are_read_whole_and_page_library_counters_stay_exact(tmp_path: Path, core: str) -> None:
    done = emulated(with_page_library("page_check"), tmp_path / "usage", core=core)
    assert (done.returncode, done.stdout) == (0, "good\n"), done.stdout + done.stderr


@pytest.mark.parametrize("core", CORES, ids=CORES.values())
def test_tenant_that_overwrites_its_page_does_not_block_the_agent(tmp_path: Path, core: str) -> None:
    done = emulated(with_page_library("page_siege"), tmp_path / "usage", "20", core=core)
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout) < 60_000


@pytest.mark.parametrize("core", CORES, ids=CORES.values())
def test_kills_during_many_reservations_leave_exact_counters(core: str) -> None:
    done = emulated(program("charge_storm_aarch64", "shim/charge_storm.c"), "150", "4", "20261122", core=core)
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout.split()[0]) > 150


def instructions(library: Path, function: str = "") -> list[tuple[int, str, str]]:
    """Return address, operation and operands of each instruction."""
    only = [f"--disassemble={function}"] if function else ["-d"]
    command = [f"{PREFIX}objdump", *only, "--no-show-raw-insn", str(library)]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.findall(r"^\s*([0-9a-f]+):\s+(\S+)[ \t]*(.*)$", listing, re.MULTILINE)
    return [(int(address, 16), operation, operands) for address, operation, operands in found]


def test_exclusive_stores_of_the_page_library_have_bounded_retries() -> None:
    """A tenant that writes to a cache line continuously would keep an unbounded loop of exclusive loads and stores running.

    An emulator cannot show that, because its exclusive stores fail only if the value has changed.
    """
    library = instructions(cross_libraries() / "lib/libcalabash-page.so")
    operations = [operation for _, operation, _ in library]
    assert "stlxp" in operations
    assert "caspal" in operations
    for place, (address, operation, _) in enumerate(library):
        if not re.fullmatch(r"st[l]?x[rp][bh]?", operation):
            continue
        for _, following, operands in library[place + 1 : place + 3]:
            if following not in ("cbnz", "tbnz"):
                continue
            target = int(operands.split(",")[-1].split()[0], 16)
            between = [o for a, o, _ in library if target <= a < address]
            assert not 0 < len(between) < 6, f"{address:x}: {between}"


@pytest.mark.parametrize(
    ("function", "order"),
    [
        ("cb_page_set_gate", r"str dmb .*(str|stp) stlr"),
        ("cb_page_add_seen", r"(str|stp) .*stlr"),
        ("cb_page_charges", r"lda(p)?r .*ldr"),
        ("cb_page_store64", r"stlr"),
    ],
)
def test_ordered_fields_are_accessed_with_barriers(function: str, order: str) -> None:
    """Check the instructions themselves, because stores in the emulator never become visible out of order."""
    accesses = [
        operation
        for _, operation, _ in instructions(cross_libraries() / "lib/libcalabash-page.so", function)
        if operation.startswith(("str", "stp", "stlr", "ldr", "ldp", "ldar", "ldapr", "dmb", "stur"))
    ]
    assert re.search(order, " ".join(accesses)), accesses


def test_simulated_node_is_created_and_shown(tmp_path: Path) -> None:
    simctl = cross_libraries() / "simgpu/calabash-simctl"
    made = emulated(simctl, "create", tmp_path / "node.state", "--gpus", "H100,T4", "--seed", "1")
    assert made.returncode == 0, made.stderr
    shown = emulated(simctl, "show", tmp_path / "node.state")
    assert shown.returncode == 0, shown.stderr
    assert "H100" in shown.stdout


def test_symbols_are_looked_up_as_without_the_shim() -> None:
    lookups = program("lookups_aarch64", "shim/lookups.c", "-ldl")
    plain = emulated(lookups)
    assert plain.returncode == 0, plain.stderr
    assert "next malloc: libc.so.6" in plain.stdout
    through = emulated("-E", f"LD_PRELOAD={cross_libraries() / 'lib/libcalabash.so'}", lookups)
    assert (through.returncode, through.stdout) == (0, plain.stdout), through.stderr


# Files with tests of the shim and of the simulated driver that are run once more with everything in C of that machine, and how
# many of their tests have the marker `aarch64`. Not marked: programs that start a program (the emulator cannot start the next
# one of its kind), NVML (called by this machine's Python), tests that read standard error (this machine's loader writes that it
# leaves a library out), tests that check whether a sibling is alive (the emulator invents the start time that a process reads
# of itself), allocations beyond the 24 GiB of addresses that the simulated driver takes if they are recorded, and tests that
# compare a clock with the product.
MARKED = {
    "the simulated driver": ("sim_cuda", 16),
    "graphs": ("shim_graph", 5),
    "memory": ("shim_memory", 18),
    "look-ups": ("shim_symbols", 6),
    "slots": ("shim_slot", 16 + (os.geteuid() == 0)),
    "beyond the card": ("shim_spill", 10),
}
RESIDENT_MIB_MAX = 512  # of a process under the emulator; gcc is among them
# Runs between this process and them: a process starts with its parent's peak memory, and this process is large.
MEASURED = (
    "import resource, subprocess, sys; code = subprocess.call(sys.argv[1:]);"
    "print('resident', resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss); sys.exit(code)"
)


@pytest.mark.parametrize("subject", MARKED)
def test_shim_and_the_simulated_driver_pass_their_tests(subject: str) -> None:
    file, count = MARKED[subject]
    cross_libraries()
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--timeout=600"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            MEASURED,
            *command,
            f"tests/native/test_{file}.py",
            "-m",
            "aarch64",
            "--verbosity=0",
            "-rN",
        ],
        cwd=ROOT,
        env=environment | {"CALABASH_TEST_MACHINE": "aarch64"},
        capture_output=True,
        text=True,
        check=False,
        timeout=800,
    )
    said = done.stdout
    resident = re.search(r"^resident (\d+)$", said, re.MULTILINE)
    assert resident is not None, said + done.stderr
    assert done.returncode == 0, said[-4000:]
    passed = re.search(r"(\d+) passed", said)
    assert passed is not None, said
    assert int(passed[1]) == count, said
    assert int(resident[1]) < RESIDENT_MIB_MAX << 10
