"""Passthrough: time to give a card to a virtual machine and back, in an emulated machine with a real kernel.

The machine computes many times slower than a real one, and its card is an NVMe controller of two functions; a GPU's own
driver adds what it takes to start and stop the card.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

from tests.vfio.machine import EmulatedMachine, build_innermost
from tools.emulated import AbsentError, cache, found

from bench._report import Report

_CASE = "times of a card of two functions"


def measure_passthrough(report: Report) -> None:
    """Measure bind and return of two functions together; does nothing without an emulated machine or with ``--quick``."""
    if report.quick or os.geteuid() != 0:
        return
    try:
        parts = found()
    except AbsentError as absent:
        report.fact("passthrough", f"not measured: {absent}")
        return
    with tempfile.TemporaryDirectory(dir=cache()) as scratch:
        program = Path(scratch) / "innermost"
        build_innermost(program)
        machine = EmulatedMachine(parts=parts, scratch=Path(scratch))
        told = machine.run(machine.program(program, "times"))
    cases = {case["case"]: case for case in (json.loads(line) for line in told.lines if line.startswith("{"))}
    if _CASE not in cases:
        last = " | ".join(told.console.splitlines()[-3:])
        report.fact(
            "passthrough", f"not measured: the emulated machine ended after {told.seconds:.0f} s without them: {last}"
        )
        return
    times = cases[_CASE]
    detail = "two functions, emulated processor"
    report.add("passthrough: checked, written down and bound", times["bind_s"] * 1000, "ms", detail=detail)
    report.add("passthrough: back with its driver", times["return_s"] * 1000, "ms", detail=detail)
