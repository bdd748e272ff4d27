"""Machine for which the tests' C programs are compiled, and how those programs are run.

Usually this machine. With ``CALABASH_TEST_MACHINE=aarch64`` everything in C (the shim, the simulated driver, the tenants'
programs) is built for aarch64 by a cross compiler and run by an emulator, while Python and its page library remain those of
this machine: the same tests, with control pages that two machines share. ``test_aarch64.py`` runs them so.
"""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Container, Iterable
from pathlib import Path

import pytest
from tests.compiled import compiled
from tools.wheel import libraries

ROOT = Path(__file__).resolve().parents[2]
MACHINE = os.environ.get("CALABASH_TEST_MACHINE", "")
PREFIX = "aarch64-linux-gnu-"
SYSTEM = Path("/usr/aarch64-linux-gnu")
CROSS_OUT = ROOT / "build/native-aarch64/_native"
NATIVE = CROSS_OUT if MACHINE else ROOT / "src/calabash/_native"
CC = f"{PREFIX}gcc" if MACHINE else "gcc"
EMULATOR = ("qemu-aarch64", "-L", str(SYSTEM))
AVAILABLE = bool(shutil.which(f"{PREFIX}gcc") and shutil.which("qemu-aarch64") and (SYSTEM / "include").is_dir())

# Linked statically, so that no loader of this machine looks at libraries that are meant for the other.
_LAUNCHER = r"""
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
int main(int argc, char **argv)
{
    static const char *names[] = {"LD_PRELOAD", "LD_LIBRARY_PATH"};
    char *words[64] = {"qemu-aarch64", "-L", SYSTEM, "-0", argv[0]};
    int count = 5;
    for (int i = 0; i < 2; i++) {
        const char *value = getenv(names[i]);
        if (!value || asprintf(&words[count + 1], "%s=%s", names[i], value) < 0) continue;
        words[count] = "-E";
        count += 2;
        unsetenv(names[i]);
    }
    words[count++] = TARGET;
    for (int i = 1; i < argc && count < 63; i++)
        words[count++] = argv[i];
    execvp(words[0], words);
    return 127;
}
"""


@functools.cache
def cross_libraries() -> Path:
    """Build everything that ``make native`` builds, for aarch64."""
    return libraries("aarch64")


def marked(cases: Iterable[str], on_aarch64: Container[str]) -> list[object]:
    """Return the cases as parameters of a test; those in ``on_aarch64`` have the marker ``aarch64``."""
    return [pytest.param(case, marks=[pytest.mark.aarch64] if case in on_aarch64 else []) for case in cases]


def runnable(program: Path) -> Path:
    """Return the path to start for a program of that machine: the program itself, or a script that runs the emulator."""
    if not MACHINE:
        return program
    definitions = [f'-DTARGET="{program}"', f'-DSYSTEM="{SYSTEM}"']
    source = ROOT / "build/tests/launcher.c"
    if not source.exists() or source.read_text() != _LAUNCHER:
        source.parent.mkdir(parents=True, exist_ok=True)
        half = source.with_suffix(f".{os.getpid()}.part")
        half.write_text(_LAUNCHER)
        half.replace(source)
    return compiled(f"{program.name}_launcher", ["gcc", "-static", "-O1", *definitions, source])
