"""Reference measurements: units in which a benchmark gives times that depend on the speed of the machine.

A figure is divided by a reference taken in the same run, as close in time as possible, and the goal is a bound on the ratio.
Where the same work without the product can be measured, that is the reference, and this module is not needed. Otherwise:

| function | one unit | used for |
|---|---|---|
| `cpu_unit_s` | processor time of a fixed loop over a Python dictionary | work bound by one processor: decisions, encoding |
| `short_loop_s` | processor time of a short piece of that loop, with caches as found | many short pieces of work, in between |
| `process_start_s` | a process from its start to its end, by default a bare interpreter | starts of programs and daemons |
| `commit_s` | a durable SQLite transaction of one row | steps that are journalled before they are taken |
| `echo_process` | a process that echoes messages of 64 bytes over TCP | answers of servers to clients that share the machine |

`cpu_unit_s` is about 1 ms on one core of the machines on which the goals were set (AMD EPYC, Python 3.11), so a goal in CPU
units reads as one in milliseconds there. The unit is processor time and compared with processor time: other processes on the
machine change both sides by what they take of caches, memory bandwidth and the sibling thread of the core.
"""

from __future__ import annotations

import multiprocessing
import socket
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from bench._report import Figure, Report

MESSAGE_BYTES = 64
CPU_UNIT = "CPU unit"
_LOOP = 9_500  # iterations; makes the unit about 1 ms
_SHORT_LOOP = 400
_KEYS = 1_009


def _dictionary_loop(iterations: int = _LOOP) -> int:
    """The fixed work of `cpu_unit_s`: reads and writes of small integers, which allocate nothing the collector looks at."""
    sums: dict[int, int] = {}
    for number in range(iterations):
        key = number * 7_919 % _KEYS
        sums[key] = sums.get(key, 0) + number
    return len(sums)


def cpu_unit_s(repeats: int = 5) -> float:
    """Return the processor time of the fixed loop, in seconds: the median of some repeats after one that warms up."""
    _dictionary_loop()
    found = []
    for _ in range(repeats):
        began = time.thread_time()
        _dictionary_loop()
        found.append(time.thread_time() - began)
    return statistics.median(found)


def short_loop_s() -> float:
    """Return the processor time of one pass of a short loop, in seconds, without warming up; about 40 us on an idle machine.

    Run it after every so many pieces of the measured work: it then meets the same cold caches and neighbours on the core.
    """
    began = time.thread_time()
    _dictionary_loop(_SHORT_LOOP)
    return time.thread_time() - began


def process_start_s(
    command: Sequence[str] = (sys.executable, "-c", "pass"), environment: Mapping[str, str] | None = None
) -> float:
    """Return the wall time of one process from its start to its end, in seconds."""
    began = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True, env=environment)
    return time.perf_counter() - began


def commit_s(directory: Path, commits: int = 20) -> float:
    """Return the wall time of one durable SQLite transaction in a directory's file system, in seconds; the median.

    The settings are those of the product's journal: a write-ahead log, `synchronous=FULL`.
    """
    with (
        tempfile.TemporaryDirectory(dir=directory) as scratch,
        closing(sqlite3.connect(Path(scratch) / "reference.db", isolation_level=None)) as database,
    ):
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("PRAGMA synchronous=FULL")
        database.execute("CREATE TABLE steps (number INTEGER PRIMARY KEY, step TEXT)")
        found = []
        for number in range(commits):
            began = time.perf_counter()
            database.execute("INSERT INTO steps VALUES (?, ?)", (number, "x" * 200))
            found.append(time.perf_counter() - began)
    return statistics.median(found)


@contextmanager
def echo_process() -> Iterator[tuple[str, int]]:
    """Run a process that echoes messages of MESSAGE_BYTES on one TCP connection; yield its address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        process = multiprocessing.get_context("fork").Process(target=_echo, args=(listener,), daemon=True)
        process.start()
        try:
            yield listener.getsockname()
        finally:
            process.kill()
            process.join()


def _echo(listener: socket.socket) -> None:
    connection, _ = listener.accept()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with suppress(ConnectionError):  # the client may end before it has read an answer
        while message := connection.recv(MESSAGE_BYTES, socket.MSG_WAITALL):
            connection.sendall(message)


@dataclass(slots=True)
class CpuTime:
    """Processor time of some work, and of the CPU unit around it, both in seconds."""

    work_s: float = 0.0
    unit_s: float = 0.0

    @property
    def units(self) -> float:
        """The work in CPU units."""
        return self.work_s / self.unit_s


@contextmanager
def cpu_time() -> Iterator[CpuTime]:
    """Take the processor time of this process for a block, and the CPU unit before and after it."""
    found, before = CpuTime(), cpu_unit_s()
    began = time.process_time()
    yield found
    found.work_s = time.process_time() - began
    found.unit_s = (before + cpu_unit_s()) / 2


def add_cpu_time(
    report: Report, name: str, found: CpuTime, *, at_most: float | None, times: int = 1, detail: str = ""
) -> Figure:
    """Record processor time in CPU units.

    Args:
        report: the benchmark's report.
        name: of the figure.
        found: the processor time.
        at_most: goal in CPU units.
        times: how often the work was repeated in that time; the figure is that of one repeat.
        detail: added to the absolute values.
    """
    value_ms, unit_ms = 1e3 * found.work_s / times, 1e3 * found.unit_s
    return report.add_ratio(name, value_ms, unit_ms, "ms", of=CPU_UNIT, at_most=at_most, detail=detail)


def alternate(
    measured: Callable[[], float], reference: Callable[[], float], rounds: int
) -> tuple[list[float], list[float]]:
    """Return the values of some rounds of two measurements in turn: the reference first, then the measured one.

    A change of the machine during the run then affects both sides of each pair.
    """
    values, references = [], []
    for _ in range(rounds):
        references.append(reference())
        values.append(measured())
    return values, references
