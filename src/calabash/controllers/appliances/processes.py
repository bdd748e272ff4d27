"""Processes of appliances: find them by their network namespace, start them in it, and end them.

PID files are not used, because they may be wrong after a crash. Instead, the network namespace of a process identifies
its replica, and the path of a configuration file in its command line identifies the program.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from calabash.adapters.host.children import run_program, start_program
from calabash.adapters.links import namespaces

_LOG_BYTES_MAX = 1 << 20
_END_S = 5
_RUN_S = 20
_ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}


@dataclass(frozen=True, slots=True)
class InNamespace:
    """A process in a network namespace: its process ID, that of its parent, and the words of its command line."""

    pid: int
    parent: int
    words: tuple[str, ...]


def by_namespace() -> Mapping[int, list[InNamespace]]:
    """Return the processes of this machine, by the inode number of their network namespace.

    Processes that end meanwhile or cannot be read are omitted.
    """
    found: dict[int, list[InNamespace]] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                inode = os.stat(f"/proc/{entry.name}/ns/net").st_ino
                words = Path(f"/proc/{entry.name}/cmdline").read_bytes().decode(errors="replace").split("\0")
                parent = int(Path(f"/proc/{entry.name}/stat").read_text().rpartition(")")[2].split()[1])
                found.setdefault(inode, []).append(InNamespace(int(entry.name), parent, tuple(words)))
    return found


def inode_of(namespace: Path) -> int:
    """Return the inode of a namespace, the key of ``by_namespace``, or 0 if it does not exist."""
    try:
        return os.stat(namespace).st_ino
    except OSError:
        return 0


def main_process(processes: Sequence[InNamespace], file: str) -> int:
    """Return the process ID of the main process that uses a configuration file; 0 if the program does not run.

    The main process is the one whose parent does not have ``file`` in its command line.
    """
    of_file = {process.pid: process for process in processes if file in process.words}
    return min((pid for pid, process in of_file.items() if process.parent not in of_file), default=0)


def start(namespace: Path, command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """Start a program in the namespace that outlives this process.

    Its output goes to ``log``, which is truncated when long.
    """

    def begin() -> subprocess.Popen[bytes]:
        with open(log, "ab") as output:
            if output.tell() > _LOG_BYTES_MAX:
                output.truncate(0)
            return start_program(command, environment=_ENVIRONMENT, stdout=output, stderr=output, new_session=True)

    return namespaces.inside(namespace, begin)


def run(namespace: Path, command: Sequence[str]) -> tuple[int, str]:
    """Run a program in the namespace; return its exit status, -1 after a time-out, and one line of its output.

    The line is the first one that contains "error" or "alert", or else the first one.
    """

    def begin() -> subprocess.CompletedProcess[str]:
        return run_program(command, environment=_ENVIRONMENT, timeout_s=_RUN_S)

    try:
        done = namespaces.inside(namespace, begin)
    except subprocess.TimeoutExpired:
        return -1, f"{command[-1]} did not end within {_RUN_S} s"
    lines = [line.strip() for line in (done.stderr + done.stdout).splitlines() if line.strip()]
    wrong = [line for line in lines if "error" in line.lower() or "alert" in line.lower()]
    return done.returncode, (wrong or lines or [""])[0][:300]


def send_signal(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process, if it still exists."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def end(pids: Sequence[int]) -> None:
    """Kill processes and wait until they have ended, at most _END_S seconds each."""
    for pid in pids:
        with contextlib.suppress(OSError):
            descriptor = os.pidfd_open(pid)
            try:
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                waiting = select.poll()
                waiting.register(descriptor, select.POLLIN)
                waiting.poll(_END_S * 1000)
            finally:
                os.close(descriptor)
