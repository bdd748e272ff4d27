"""How fast the command line answers: help and completion are run at every TAB, so nothing heavy may be imported.

Whole processes, started one after the other in turns with a bare interpreter and with an interpreter that imports click
alone; medians. The ratio to the bare interpreter is what carries over to other machines.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from bench._report import Report, run

COMMANDS: dict[str, tuple[str, ...]] = {
    "bare interpreter": (sys.executable, "-c", "pass"),
    "interpreter with click": (sys.executable, "-c", "import click"),
    "calabash --help": (str(Path(sys.executable).with_name("calabash")), "--help"),
    "calabash run --help": (str(Path(sys.executable).with_name("calabash")), "run", "--help"),
    "calabash --version": (str(Path(sys.executable).with_name("calabash")), "--version"),
}
GOALS_MS = {"calabash --help": 150.0, "calabash run --help": 150.0, "calabash --version": 150.0}


def elapsed_ms(command: tuple[str, ...]) -> float:
    """Wall time of one run from start to end."""
    began = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True, env=dict(os.environ))
    return (time.perf_counter() - began) * 1e3


def measure(report: Report) -> None:
    """Medians in turns, so that a drift of the machine hits all alike."""
    rounds = 8 if report.quick else 25
    samples: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for turn in range(rounds + 1):
        for name, command in COMMANDS.items():
            taken = elapsed_ms(command)
            if turn:  # the first turn warms the page cache
                samples[name].append(taken)
    bare = statistics.median(samples["bare interpreter"])
    for name, values in samples.items():
        median = statistics.median(values)
        report.add(
            name,
            median,
            "ms",
            at_most=GOALS_MS.get(name),
            detail=f"{median / bare:.1f} x bare, worst {max(values):.0f}",
        )


if __name__ == "__main__":
    run("cli", "The command line's start", measure)
