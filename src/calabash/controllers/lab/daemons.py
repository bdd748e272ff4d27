"""Daemons of OVN and Open vSwitch: start them detached, find them by PID file and command line, and end them."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from calabash.adapters.host.children import child_environment, start_program
from calabash.controllers.lab import namespaces
from calabash.model.errors import CalabashError, Reason

_START_S = 60
_STOP_S = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class LabDaemon:
    """One daemon of a lab. ``directory`` contains its files ``NAME.pid``, ``NAME.log`` and ``NAME.ctl``.

    Args:
        name: name of the daemon, unique in ``directory``.
        namespace: network namespace in which it runs; "" for that of this process.
        command: words with which the command line begins: the program, or the dynamic loader and the program.
        arguments: words that follow the options which all daemons have.
        environment: variables that are added to the daemon's environment.
    """

    name: str
    directory: Path
    command: tuple[str, ...]
    arguments: tuple[str, ...]
    namespace: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def pid_file(self) -> Path:
        return self.directory / f"{self.name}.pid"

    @property
    def control(self) -> Path:
        """Control socket, for ``ovs-appctl -t``."""
        return self.directory / f"{self.name}.ctl"

    @property
    def pid(self) -> int:
        """Process ID of the daemon; 0 if it is not running."""
        return daemon_pid(self.pid_file)

    def start(self) -> None:
        """Start the daemon unless it is running; return when it is ready. Raises CalabashError if it does not start."""
        if self.pid:
            return
        self.control.unlink(missing_ok=True)
        line = (
            *self.command,
            "--detach",
            "--no-chdir",
            f"--pidfile={self.pid_file}",
            f"--log-file={self.directory / self.name}.log",
            "-vconsole:off",
            f"--unixctl={self.control}",
            *self.arguments,
        )
        environment = child_environment() | dict(self.environment)

        def begin() -> int:
            # Output goes to a file: a pipe would stay open in the daemon.
            with open(self.directory / f"{self.name}.err", "wb") as said:
                starting = start_program(line, environment=environment, stdout=said, stderr=said)
            try:
                return starting.wait(_START_S)
            except subprocess.TimeoutExpired:
                starting.kill()
                starting.wait()
                return -1

        code = namespaces.inside(self.namespace, begin) if self.namespace else begin()
        if code != 0:
            raise CalabashError(
                f"{self.name} does not start in {self.directory.name}: {self._last_output()}",
                reason=Reason.UNSUPPORTED,
                hint="`calabash doctor` shows what the machine lacks",
            )

    def stop(self) -> None:
        """Stop the daemon with SIGTERM and wait; kill it if it does not end within _STOP_S seconds."""
        _end(self.pid, signal.SIGTERM)
        _end(self.pid, signal.SIGKILL)

    def kill(self) -> None:
        """Kill the daemon and wait until it has ended."""
        _end(self.pid, signal.SIGKILL)

    def _last_output(self) -> str:
        for path in (self.directory / f"{self.name}.err", self.directory / f"{self.name}.log"):
            with contextlib.suppress(OSError):
                lines = path.read_text(errors="replace").strip().splitlines()
                if lines:
                    return lines[-1][:300]
        return "no output"


def daemon_pid(pid_file: Path) -> int:
    """Return the process ID in a PID file, or 0 if that process does not have the file in its command line."""
    try:
        pid = int(pid_file.read_text())
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (OSError, ValueError):
        return 0
    return pid if f"--pidfile={pid_file}".encode() in words else 0


def kill_all(directory: Path) -> int:
    """Kill all daemons whose PID files are below a directory, and wait; return their number."""
    mark = f"--pidfile={directory}/".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if any(word.startswith(mark) for word in entry.read_bytes().split(b"\0")):
                found.append(int(entry.parent.name))
    end(found)
    return len(found)


def end(pids: Iterable[int]) -> None:
    """Kill processes at once, and wait until all have ended."""
    waiting = [descriptor for pid in pids if (descriptor := _signal(pid, signal.SIGKILL)) >= 0]
    for descriptor in waiting:
        _wait(descriptor)


def _end(pid: int, number: int) -> None:
    if pid > 0 and (descriptor := _signal(pid, number)) >= 0:
        _wait(descriptor)


def _signal(pid: int, number: int) -> int:
    """Send a signal; return a descriptor of the process, or -1 if it does not exist."""
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return -1
    try:
        signal.pidfd_send_signal(descriptor, number)
    except OSError:
        os.close(descriptor)
        return -1
    return descriptor


def _wait(descriptor: int) -> None:
    try:
        waiting = select.poll()
        waiting.register(descriptor, select.POLLIN)
        waiting.poll(_STOP_S * 1000)
    finally:
        os.close(descriptor)
