"""PTX kernels on the simulated card: speed of their execution on one processor, and of their compilation.

An instruction is one of one thread; the loops are those that a program's kernels are made of. Figures are of processor
time of one process on one core. Goals are in instructions per CPU unit (``bench._reference``) of the same process, a unit
being about 1 ms on the machines where they were set.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

from bench._lab import NATIVE, Lab
from bench._ptx_kernels import LOOPS
from bench._reference import CPU_UNIT
from bench._report import ROOT, Report, run

INSTRUCTIONS_PER_UNIT = 400_000


def measure(report: Report) -> None:
    """Measure all."""
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
        per_s, detail = found[name], "instructions of threads, one core"
        report.add(f"{name} loop", per_s / 1e6, "M/s", detail=detail)
        report.add_ratio(
            f"{name} loop, per CPU unit",
            per_s,
            1 / found["cpu_unit_s"],
            "/s",
            of=CPU_UNIT,
            at_least=INSTRUCTIONS_PER_UNIT,
        )
    report.add("sgemm, tiles of 16 x 16", found["sgemm"] / 1e9, "GFLOP/s", detail="one core")
    report.add("compiling", found["compile"] * 1e6, "us/KB", detail="of PTX, with loading and unloading")


if __name__ == "__main__":
    run("ptx", "Kernels from PTX on the simulated card", measure)
