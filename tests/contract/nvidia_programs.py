"""NVIDIA's own programs, unmodified, built from their Go modules."""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
from pathlib import Path

import pytest
from tests.contract.node_root import ROOT

GO = ROOT / "build" / "go"
MODULES = Path(__file__).parent / "go"
PACKAGES = {
    "nvidia-ctk": "github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-ctk",
    "device-plugin": "github.com/NVIDIA/k8s-device-plugin/cmd/nvidia-device-plugin",
}
BUILD_S = 900


def built(name: str) -> Path:
    """A program of NVIDIA's, built once for each state of its go.mod and go.sum; several workers wait for one."""
    module = MODULES / name
    digest = hashlib.sha256(b"".join((module / f).read_bytes() for f in ("go.mod", "go.sum"))).hexdigest()[:16]
    program = GO / "bin" / f"{name}-{digest}"
    program.parent.mkdir(parents=True, exist_ok=True)
    # Go's own caches, so that the next clone on this machine fetches and compiles nothing again.
    environment = os.environ | {"GOFLAGS": "-mod=readonly"}
    with (GO / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            command = ["nice", "-n", "5", "go", "build", "-p", "2", "-o", f"{program}.new", PACKAGES[name]]
            done = subprocess.run(
                command, cwd=module, env=environment, capture_output=True, text=True, timeout=BUILD_S, check=False
            )
            if done.returncode != 0 and "dial tcp" in done.stderr:
                pytest.skip(f"the modules of {name} cannot be fetched: {done.stderr.strip()[-200:]}")
            assert done.returncode == 0, done.stderr[-4000:]
            Path(f"{program}.new").rename(program)
    return program
