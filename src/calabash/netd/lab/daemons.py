"""Daemons of OVN and Open vSwitch by pid file: started detached, told from strangers by their command line, ended."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from calabash.model.errors import CalabashError, Reason
from calabash.netd.lab import namespaces
from calabash.seams.host.children import child_environment, start_program

_START_S = 60
_STOP_S = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class LabDaemon:
    """One daemon of a lab. Its pid file, log and control socket are ``NAME.pid``, ``.log`` and ``.ctl`` in ``directory``.

    Args:
        namespace: where it runs; "" this process's own.
        command, arguments: what runs it, before and behind the options that all of them have.
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
        """The socket that ``ovs-appctl -t`` takes."""
        return self.directory / f"{self.name}.ctl"

    @property
    def pid(self) -> int:
        """Its process, 0 when it does not run."""
        return running(self.pid_file)

    def start(self) -> None:
        """Starts it when it does not run, and returns when it has read its configuration. Raises CalabashError."""
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
            # Their log says what is wrong; a pipe would stay open in the daemon.
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
                f"{self.name} does not start in {self.directory.name}: {self._said()}",
                reason=Reason.UNSUPPORTED,
                hint="`calabash doctor` says what the machine lacks",
            )

    def stop(self) -> None:
        """Asks it to end, as at its host's shutdown, and waits until it has; a daemon that does not is killed."""
        _end(self.pid, signal.SIGTERM)
        _end(self.pid, signal.SIGKILL)

    def kill(self) -> None:
        """Kills it, and returns when it is gone."""
        _end(self.pid, signal.SIGKILL)

    def _said(self) -> str:
        for path in (self.directory / f"{self.name}.err", self.directory / f"{self.name}.log"):
            with contextlib.suppress(OSError):
                lines = path.read_text(errors="replace").strip().splitlines()
                if lines:
                    return lines[-1][:300]
        return "it said nothing"


def running(pid_file: Path) -> int:
    """The process of a pid file, 0 when it is gone: a process is the daemon only when its command line names that file."""
    try:
        pid = int(pid_file.read_text())
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (OSError, ValueError):
        return 0
    return pid if f"--pidfile={pid_file}".encode() in words else 0


def kill_all(directory: Path) -> int:
    """Kills every daemon whose pid file is or will be below a directory, and waits until all are gone; how many there were."""
    mark = f"--pidfile={directory}/".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if any(word.startswith(mark) for word in entry.read_bytes().split(b"\0")):
                found.append(int(entry.parent.name))
    end(found)
    return len(found)


def end(pids: Iterable[int]) -> None:
    """Kills processes, all of them at once, and waits until they are gone."""
    waiting = [descriptor for pid in pids if (descriptor := _signal(pid, signal.SIGKILL)) >= 0]
    for descriptor in waiting:
        _wait(descriptor)


def _end(pid: int, number: int) -> None:
    if pid > 0 and (descriptor := _signal(pid, number)) >= 0:
        _wait(descriptor)


def _signal(pid: int, number: int) -> int:
    """A descriptor of the process that got the signal, -1 when it is gone."""
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
