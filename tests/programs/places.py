"""Where programs run that nobody here wrote, and the environment that has their libraries."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.native.sim_cuda_programs import CudaNode

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = ROOT / "build" / "programs"
SCRIPTS = Path(__file__).with_name("scripts")
DEADLINE_S = 240

# The same programs everywhere, and the same results: whoever adds a place adds it here.
PLACES: Mapping[str, Callable[[Path, str], CudaNode]] = {"local": CudaNode}


def python() -> Path:
    """The interpreter that has the libraries."""
    found = ENVIRONMENT / "bin" / "python"
    if not (ENVIRONMENT / ".complete").exists():
        reason = (
            "no environment with numba-cuda, tinygrad and others in build/programs: tools/bootstrap --tests makes it"
        )
        if os.environ.get("CALABASH_PROGRAMS") == "required":
            pytest.fail(reason)
        pytest.skip(reason)
    return found


def packages() -> Path:
    """Where the libraries lie."""
    return next((ENVIRONMENT / "lib").glob("python3.*")) / "site-packages"


class Place:
    """A node, and programs on it that find neither a cache of an earlier run nor anything else of the user's."""

    def __init__(self, kind: str, directory: Path) -> None:
        self.python = python()
        self.node = PLACES[kind](directory / "node.state", "A100-80GB")
        self.home = directory

    def run(self, script: Path, **extra: str) -> str:
        """What the program writes; it must end well."""
        environment = self.node.environment(**extra)
        environment["LD_LIBRARY_PATH"] += f":{packages()}/nvidia/cu13/lib"  # as a machine with CUDA has it
        environment |= {"HOME": str(self.home), "XDG_CACHE_HOME": str(self.home), "TI_OFFLINE_CACHE": "0"}
        done = subprocess.run(
            [self.python, script],
            capture_output=True,
            text=True,
            env=environment,
            cwd=self.home,
            timeout=DEADLINE_S,
            check=False,
        )
        assert done.returncode == 0, f"{script.name}: exit {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def results(self, name: str, **extra: str) -> dict[str, Any]:
        """What one of our programs gave."""
        found: dict[str, Any] = json.loads(self.run(SCRIPTS / f"{name}.py", **extra).splitlines()[-1])
        return found

    def close(self) -> None:
        self.node.close()
