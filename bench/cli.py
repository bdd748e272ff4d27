"""Start-up time of the command line, and what ``calabash run`` adds to the start of a program.

Help and completion run at every TAB, so nothing heavy may be imported. Whole processes are started one after the other, in
turns with a bare interpreter and with an interpreter that imports click alone. Goals are ratios to the bare interpreter of
the same turn, the median over the turns. ``run`` starts ``true`` on a slice of a simulated card, in turns with ``true``
alone and a bare interpreter: interpreter, request, journal and the start of the preloaded library all count.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench._reference import process_start_s
from bench._report import Report, run

CALABASH = str(Path(sys.executable).with_name("calabash"))
BARE = "bare interpreter"
INTERPRETER = (sys.executable, "-c", "pass")
COMMANDS: dict[str, tuple[str, ...]] = {
    BARE: INTERPRETER,
    "interpreter with click": (sys.executable, "-c", "import click"),
    "calabash --help": (CALABASH, "--help"),
    "calabash run --help": (CALABASH, "run", "--help"),
    "calabash --version": (CALABASH, "--version"),
}
# Goals: ratios to the bare interpreter.
GOALS = {"calabash --help": 7.0, "calabash run --help": 7.0, "calabash --version": 7.0}
PROGRAM = ("/bin/true",)
ON_A_SLICE = (CALABASH, "run", "--memory", "1GiB", "--cores", "10", "--", *PROGRAM)
RUN_ADDS = 6.0


def samples(commands: dict[str, tuple[str, ...]], environment: dict[str, str], rounds: int) -> dict[str, list[float]]:
    """Return the times of each command in ms, taken in turns; the first turn, which warms the page cache, is left out."""
    found: dict[str, list[float]] = {name: [] for name in commands}
    for turn in range(rounds + 1):
        for name, command in commands.items():
            taken = 1e3 * process_start_s(command, environment)
            if turn:
                found[name].append(taken)
    return found


@contextmanager
def pool() -> Iterator[dict[str, str]]:
    """Run a pool of its own on one simulated card; yield its environment."""
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
    """Measure the start-up time first, then ``run`` beside the bare program."""
    rounds = 8 if report.quick else 25
    taken = samples(COMMANDS, dict(os.environ), rounds)
    report.add(BARE, statistics.median(taken[BARE]), "ms", detail=f"worst {max(taken[BARE]):.0f}")
    for name in [name for name in COMMANDS if name != BARE]:
        _add(report, name, taken[name], taken[BARE], GOALS.get(name))
    with pool() as environment:
        taken = samples({BARE: INTERPRETER, "bare": PROGRAM, "slice": ON_A_SLICE}, environment, 2 * rounds)
    added = [one - other for one, other in zip(taken["slice"], taken["bare"], strict=True)]
    _add(report, "calabash run adds to a trivial program", added, taken[BARE], RUN_ADDS)


def _add(report: Report, name: str, taken_ms: list[float], bare_ms: list[float], goal: float | None) -> None:
    """Record a ratio to the bare interpreter."""
    report.add_ratio(name, taken_ms, bare_ms, "ms", of=BARE, at_most=goal, detail=f"worst {max(taken_ms):.0f}")


if __name__ == "__main__":
    run("cli", "The command line's start", measure)
