"""How fast the command line answers, and what ``calabash run`` adds to the start of a program.

Help and completion are run at every TAB, so nothing heavy may be imported. Whole processes, started one after the other
in turns with a bare interpreter and with an interpreter that imports click alone; medians. The ratio to the bare
interpreter is what carries over to other machines. ``run`` starts ``true`` on a slice of a simulated card, in turns with
``true`` alone: all of it counts, interpreter, request, journal, the shim's start.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench._report import Report, run

CALABASH = str(Path(sys.executable).with_name("calabash"))
COMMANDS: dict[str, tuple[str, ...]] = {
    "bare interpreter": (sys.executable, "-c", "pass"),
    "interpreter with click": (sys.executable, "-c", "import click"),
    "calabash --help": (CALABASH, "--help"),
    "calabash run --help": (CALABASH, "run", "--help"),
    "calabash --version": (CALABASH, "--version"),
}
GOALS_MS = {"calabash --help": 150.0, "calabash run --help": 150.0, "calabash --version": 150.0}
PROGRAM = ("/bin/true",)
ON_A_SLICE = (CALABASH, "run", "--memory", "1GiB", "--cores", "10", "--", *PROGRAM)
RUN_ADDS_MS = 60.0


def elapsed_ms(command: tuple[str, ...], environment: dict[str, str]) -> float:
    """Wall time of one run from start to end."""
    began = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True, env=environment)
    return (time.perf_counter() - began) * 1e3


def samples(commands: dict[str, tuple[str, ...]], environment: dict[str, str], rounds: int) -> dict[str, list[float]]:
    """Times in turns, so that a drift of the machine hits all alike; the first turn warms the page cache."""
    found: dict[str, list[float]] = {name: [] for name in commands}
    for turn in range(rounds + 1):
        for name, command in commands.items():
            taken = elapsed_ms(command, environment)
            if turn:
                found[name].append(taken)
    return found


@contextmanager
def pool() -> Iterator[dict[str, str]]:
    """The environment of a pool of its own on one simulated card."""
    with tempfile.TemporaryDirectory(prefix="calabash-bench-") as home:
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("CALABASH_", "LD_"))}
        environment["CALABASH_HOME"] = home
        for words in (("sim", "create", "bench", "--gpus", "1xA100-40GB"), ("up", "--sim", "bench")):
            subprocess.run((CALABASH, *words), check=True, env=environment, stdout=subprocess.DEVNULL)
        try:
            yield environment
        finally:
            subprocess.run((CALABASH, "down", "--force"), check=True, env=environment, stdout=subprocess.DEVNULL)


def measure(report: Report) -> None:
    """Start-up first, then ``run`` beside the bare program."""
    rounds = 8 if report.quick else 25
    taken = samples(COMMANDS, dict(os.environ), rounds)
    bare = statistics.median(taken["bare interpreter"])
    for name, values in taken.items():
        median = statistics.median(values)
        report.add(
            name,
            median,
            "ms",
            at_most=GOALS_MS.get(name),
            detail=f"{median / bare:.1f} x bare, worst {max(values):.0f}",
        )
    with pool() as environment:
        taken = samples({"bare": PROGRAM, "slice": ON_A_SLICE}, environment, 2 * rounds)
    alone, median = statistics.median(taken["bare"]), statistics.median(taken["slice"])
    report.add(
        "calabash run adds to a trivial program",
        median - alone,
        "ms",
        at_most=RUN_ADDS_MS,
        detail=f"{median:.0f} beside {alone:.1f}; {median / bare:.1f} x bare interpreter, worst {max(taken['slice']):.0f}",
    )


if __name__ == "__main__":
    run("cli", "The command line's start", measure)
