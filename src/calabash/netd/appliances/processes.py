"""Programs of appliances as processes: found by the namespace that they are in, started inside it, ended.

No pid files: a namespace is one appliance's alone, and which program a process is its command line says, that names the file of
its configuration. So nothing has to be right on disk after a crash.
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

from calabash.seams.host.children import run_program, start_program
from calabash.seams.links import namespaces

_LOG_BYTES_MAX = 1 << 20
_END_S = 5
_RUN_S = 20
_ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}


@dataclass(frozen=True, slots=True)
class InNamespace:
    """A process of a namespace, with its parent and its command line."""

    pid: int
    parent: int
    words: tuple[str, ...]


def by_namespace() -> Mapping[int, list[InNamespace]]:
    """Every process of this machine by the inode of its network namespace; what cannot be read is gone or somebody else's."""
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
    """By which ``by_namespace`` knows a namespace; 0 where there is none."""
    try:
        return os.stat(namespace).st_ino
    except OSError:
        return 0


def main_process(processes: Sequence[InNamespace], file: str) -> int:
    """The first of those that run with ``file``: the one whose parent is not one of them; 0 where there is none."""
    of_file = {process.pid: process for process in processes if file in process.words}
    return min((pid for pid, process in of_file.items() if process.parent not in of_file), default=0)


def start(namespace: Path, command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """A program inside that outlives this process; what it says goes to ``log``, which begins anew when it is long."""

    def begin() -> subprocess.Popen[bytes]:
        with open(log, "ab") as said:
            if said.tell() > _LOG_BYTES_MAX:
                said.truncate(0)
            return start_program(command, environment=_ENVIRONMENT, stdout=said, stderr=said, new_session=True)

    return namespaces.inside(namespace, begin)


def run(namespace: Path, command: Sequence[str]) -> tuple[int, str]:
    """A program inside until it ends: its exit code, and the line that says what is wrong, else the first."""

    def begin() -> subprocess.CompletedProcess[str]:
        return run_program(command, environment=_ENVIRONMENT, timeout_s=_RUN_S)

    try:
        done = namespaces.inside(namespace, begin)
    except subprocess.TimeoutExpired:
        return -1, f"{command[-1]} did not end within {_RUN_S} s"
    lines = [line.strip() for line in (done.stderr + done.stdout).splitlines() if line.strip()]
    wrong = [line for line in lines if "error" in line.lower() or "alert" in line.lower()]
    return done.returncode, (wrong or lines or [""])[0][:300]


def tell(pid: int, number: signal.Signals) -> None:
    """A signal to a process; nothing where it is gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def end(pids: Sequence[int]) -> None:
    """Kills processes and waits until they are gone, at most a few seconds."""
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
