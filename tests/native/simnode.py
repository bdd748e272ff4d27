"""Helpers of tests of the simulated node: a node in a directory, programs that hold its cards, NVML in a subprocess."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.compiled import compiled
from tests.native.machine import NATIVE, runnable

from calabash.adapters.gpu.library import simulated_library_dir

ROOT = Path(__file__).resolve().parents[2]
SIMCTL = NATIVE / "simgpu/calabash-simctl"
DEADLINE_S = 60.0


def simctl(*arguments: object, timeout_s: float = DEADLINE_S) -> subprocess.CompletedProcess[str]:
    """Run the tool; the caller checks the exit code."""
    command = [str(runnable(SIMCTL)), *(str(a) for a in arguments)]
    return subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=timeout_s, check=False)


def compile_holder() -> Path:
    """Compile ``sim_holder``, a process of a node that needs no CUDA library."""
    parts = (
        "state",
        "engine",
        "engine_run",
        "engine_side",
        "slot",
        "charge",
        "liveness",
        "process_gate",
        "device_memory",
        "queue",
        "mps",
        "managed",
    )
    sources = [ROOT / "tests/native/sim_holder.c", *(ROOT / "native/sim/node" / f"{name}.c" for name in parts)]
    return compiled("sim_holder", ["gcc", "-std=gnu11", "-O1", "-pthread", f"-I{ROOT / 'native'}", *sources])


class Holder:
    """A running ``sim_holder``; it ends on request or when killed."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", "the holder did not get its memory"

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def end(self) -> int:
        """Let the process end normally; return its exit code."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self._process.wait(timeout=DEADLINE_S)


class Node:
    """A simulated node of one test."""

    def __init__(self, state: Path, gpus: str, holder: Path, seed: int = 1) -> None:
        self.state = state
        self._holder = holder
        self._held: list[Holder] = []
        made = simctl("create", state, "--gpus", gpus, "--seed", seed)
        assert made.returncode == 0, made.stderr

    @property
    def environment(self) -> dict[str, str]:
        return os.environ | {"CALABASH_SIM": str(self.state), "LD_LIBRARY_PATH": str(simulated_library_dir())}

    def show(self) -> dict[str, Any]:
        shown = simctl("show", self.state, "--json")
        assert shown.returncode == 0, shown.stderr
        decoded: dict[str, Any] = json.loads(shown.stdout)
        return decoded

    def inject(self, gpu: object, *what: object) -> None:
        done = simctl("inject", self.state, "--gpu", gpu, *what)
        assert done.returncode == 0, done.stderr

    def hold(self, device: int, size: int = 0, busy_ms: int = 0, prefix: tuple[str, ...] = ()) -> Holder:
        """Start a process that holds ``size`` bytes and one context of a card, and keeps it busy for a while."""
        process = subprocess.Popen(
            [*prefix, self._holder, str(device), str(size), str(busy_ms)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=self.environment,
        )
        holder = Holder(process)
        self._held.append(holder)
        return holder

    def nvml(self, program: str, prefix: tuple[str, ...] = ()) -> Any:
        """Run Python code with pynvml imported and initialized; return the value that it assigns to ``answer``."""
        source = "\n".join(
            (
                "import json, os, sys, time",
                "from pynvml import *",
                "nvmlInit()",
                "def handles(): return [nvmlDeviceGetHandleByIndex(i) for i in range(nvmlDeviceGetCount())]",
                textwrap.dedent(program),
                "print(json.dumps(answer))",
            )
        )
        done = subprocess.run(
            [*prefix, sys.executable, "-c", source],
            capture_output=True,
            text=True,
            env=self.environment,
            timeout=DEADLINE_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    def close(self) -> None:
        for holder in self._held:
            holder.kill()


def until(condition: Callable[[], bool], what: str) -> None:
    """Poll a condition; fail with ``what`` if it does not become true in time."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {DEADLINE_S:g} s: {what}"
        time.sleep(0.01)
