"""The C programs that test the simulated CUDA driver, compiled once, and nodes to run them on."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from tests.compiled import compiled
from tests.native.machine import CC, NATIVE, runnable
from tests.native.simnode import simctl

ROOT = Path(__file__).resolve().parents[2]
INCLUDE = Path(sysconfig.get_paths()["purelib"]) / "nvidia" / "cu13" / "include"
STRICT = ("-std=gnu11", "-O1", "-g", "-pthread", "-Wall", "-Wextra", "-Wshadow", "-Werror")


@functools.cache
def program(name: str) -> Path:
    """Compile ``tests/native/NAME.c`` against the simulated driver."""
    source = ROOT / "tests" / "native" / f"{name}.c"
    library = NATIVE / "simgpu/libcuda.so.1"
    return runnable(compiled(name, [CC, *STRICT, "-isystem", INCLUDE, source, library, "-lm"]))


@functools.cache
def nvml_reader() -> Path:
    """Compile ``sim_nvml_look``, which needs only NVML's library."""
    name = "sim_nvml_look"
    return runnable(compiled(name, [CC, *STRICT, ROOT / "tests" / "native" / f"{name}.c", "-ldl"]))


class CudaNode:
    """A simulated node, and processes on it."""

    seed = 1

    def __init__(self, state: Path, gpus: str) -> None:
        self.state = state
        self._started: list[subprocess.Popen[str]] = []
        made = simctl("create", state, "--gpus", gpus, "--seed", self.seed)
        assert made.returncode == 0, made.stderr

    def environment(self, **extra: str) -> dict[str, str]:
        own = {"CALABASH_SIM": str(self.state), "LD_LIBRARY_PATH": str(NATIVE / "simgpu")}
        return os.environ | own | extra

    def run(self, name: str, *arguments: object, **extra: str) -> str:
        """Run a program and return its output; it must succeed."""
        command = [str(program(name)), *map(str, arguments)]
        done = subprocess.run(
            command, capture_output=True, text=True, env=self.environment(**extra), timeout=60, check=False
        )
        assert done.returncode == 0, f"{' '.join(command[1:])}: exit {done.returncode}\n{done.stderr}"
        return done.stdout

    def start(self, name: str, *arguments: object, **extra: str) -> subprocess.Popen[str]:
        """Start a program and wait for its line ``ready``."""
        process = subprocess.Popen(
            [str(program(name)), *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=self.environment(**extra),
        )
        self._started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", "the program did not come up"
        return process

    def device(self, index: int = 0) -> dict[str, Any]:
        """Return the state of one card, after dead processes were swept."""
        shown = simctl("show", self.state, "--json")
        assert shown.returncode == 0, shown.stderr
        device: dict[str, Any] = json.loads(shown.stdout)["devices"][index]
        return device

    def inject(self, *what: object) -> None:
        done = simctl("inject", self.state, "--gpu", 0, *what)
        assert done.returncode == 0, done.stderr

    def close(self) -> None:
        for process in self._started:
            process.kill()
            with contextlib.suppress(BrokenPipeError), process:  # its pipes are closed
                process.wait()


def ask(process: subprocess.Popen[str]) -> str:
    """Send one line and return the answer."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return process.stdout.readline().strip()
