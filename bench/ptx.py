"""Kernels from PTX on the simulated card: how fast one processor executes them, and how fast they are compiled.

An instruction is one of one thread; the loops are those that a program's kernels are made of. Figures are of processor
time of one process on one core, so that what else the machine does counts little.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

from bench._lab import NATIVE, Lab
from bench._ptx_kernels import LOOPS
from bench._report import ROOT, Report, run

INSTRUCTIONS_PER_S = 100e6


def measure(report: Report) -> None:
    """All of it."""
    with Lab(arbiter=False) as lab:
        if lab.node is None:
            report.fact("card", "real: nothing to measure")
            return
        own = {"CALABASH_SIM": str(lab.node.state), "LD_LIBRARY_PATH": str(NATIVE / "simgpu")}
        command = [sys.executable, "-m", "bench._ptx_worker", *(["--quick"] if report.quick else [])]
        done = subprocess.run(
            command, cwd=ROOT, env=os.environ | own, stdout=subprocess.PIPE, text=True, check=True, timeout=600
        )
    found = json.loads(done.stdout)
    for name in LOOPS:
        report.add(
            f"{name} loop",
            found[name] / 1e6,
            "M/s",
            at_least=INSTRUCTIONS_PER_S / 1e6,
            detail="instructions of threads, one core",
        )
    report.add("sgemm, tiles of 16 x 16", found["sgemm"] / 1e9, "GFLOP/s", detail="one core")
    report.add("compiling", found["compile"] * 1e6, "us/KB", detail="of PTX, with loading and unloading")


if __name__ == "__main__":
    run("ptx", "Kernels from PTX on the simulated card", measure)
