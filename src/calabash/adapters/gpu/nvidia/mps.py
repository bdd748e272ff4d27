"""Control of NVIDIA's multi-process service (MPS) through the program ``nvidia-cuda-mps-control``.

A control daemon has a directory: ``pipe`` is where programs connect, ``log`` has the logs of the daemon and its
servers. Each command is one short run of the program with a deadline, so that a hung daemon cannot block its caller.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from calabash.adapters.gpu.library import OWN_FILES, DriverFiles
from calabash.adapters.gpu.programs import driver_program, program_environment
from calabash.adapters.host.children import run_program, start_program
from calabash.adapters.host.processes import Process, running
from calabash.model.errors import CalabashError, Reason

PROGRAM = "nvidia-cuda-mps-control"
SERVER_PROGRAM = "nvidia-cuda-mps-server"
ASK_S = 3.0
DEVICE = 0  # a daemon has one device; all versions accept its number, not all its UUID
SOCKET_PATH_MAX = 90  # bytes; longest directory of a socket, whose path the kernel limits
_LOG_BYTES_MAX = 1 << 20
_PIDS_MAX = 4096
# "Client {3, 4711} encountered a fatal fault on device GPU-..."; the text may differ between driver versions.
_CULPRIT = re.compile(r"[Cc]lient \{\d+, (\d+)\} encountered a fatal")


class ServerStatus(StrEnum):
    """Status that an MPS server reports."""

    INITIALIZING = "INITIALIZING"
    ACTIVE = "ACTIVE"
    FAULT = "FAULT"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerState:
    """State of an MPS server, with the pids of its clients."""

    pid: int
    status: ServerStatus
    clients: tuple[int, ...] = ()


def find_program(environment: Mapping[str, str], files: DriverFiles = OWN_FILES) -> Path:
    """Return the path of the control program, which is searched for by ``driver_program``.

    Raises CalabashError(BAD_FILE) if there is none.
    """
    found = driver_program(PROGRAM, environment, files)
    if found is None:
        raise CalabashError(
            f"{PROGRAM} is not installed, so mode mps cannot be served",
            reason=Reason.BAD_FILE,
            hint="it comes with the driver: nvidia-compute-utils, or make native for a simulated node",
        )
    return found


class MpsControl:
    """MPS control daemon of one directory and one device, which this process controls.

    Args:
        directory: directory of the daemon, with the subdirectories ``pipe`` and ``log``.
        device: UUID of the device.
        environment: variables of the control program.
        files: files of the host's driver, among which the control program is searched for.
    """

    def __init__(
        self, directory: Path, device: str, environment: Mapping[str, str], files: DriverFiles = OWN_FILES
    ) -> None:
        self.pipe = directory / "pipe"
        self.log = directory / "log"
        self._environment = environment
        self._files = files
        self._own = {
            "CUDA_MPS_PIPE_DIRECTORY": str(self.pipe),
            "CUDA_MPS_LOG_DIRECTORY": str(self.log),
            "CUDA_VISIBLE_DEVICES": device,
        }
        self._read_to = 0

    def daemons(self) -> list[Process]:
        """Return the daemons of this directory and device, including daemons that this process did not start."""
        return running(PROGRAM, self._here, f"CUDA_VISIBLE_DEVICES={self._own['CUDA_VISIBLE_DEVICES']}", word="-f")

    def processes(self) -> list[Process]:
        """Return all daemons and servers that run in this directory, also those of another device."""
        return [*running(PROGRAM, self._here, word="-f"), *running(SERVER_PROGRAM, self._here)]

    @property
    def _here(self) -> str:
        return f"CUDA_MPS_PIPE_DIRECTORY={self.pipe}"

    @property
    def client_variables(self) -> tuple[tuple[str, str], ...]:
        """Variables with which a program finds the daemon."""
        return (("CUDA_MPS_PIPE_DIRECTORY", str(self.pipe)),)

    def start(self, *, multiuser: bool) -> subprocess.Popen[bytes]:
        """Start the daemon as a child process that outlives this process.

        Args:
            multiuser: True if one server shall serve all users, False for a server for each user.

        Raises CalabashError(BAD_FILE) if the program is missing or cannot be started.
        """
        program = self._program()
        own = self.pipe.parent
        for directory, mode in ((own.parent, 0o711), (own, 0o711), (self.pipe, 0o711), (self.log, 0o700)):
            directory.mkdir(mode=mode, parents=True, exist_ok=True)
            directory.chmod(mode)
        command = [str(program), "-f", *(["--multiuser-server"] if multiuser else [])]
        self.skip_log()
        try:
            return start_program(
                command,
                environment=self._whole(program),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                new_session=True,
            )
        except OSError as error:
            raise CalabashError(
                f"cannot start {program}: {error.strerror}", reason=Reason.BAD_FILE, hint="is it executable?"
            ) from error

    def ask(self, *commands: str) -> str:
        """Send the commands to the daemon one after the other and return its output.

        Raises CalabashError: TIMEOUT if the daemon does not answer within ASK_S seconds, NOT_FOUND if there is no
        daemon.
        """
        program = self._program()
        try:
            done = run_program(
                [str(program)],
                text="".join(f"{command}\n" for command in commands),
                timeout_s=ASK_S,
                environment=self._whole(program),
            )
        except subprocess.TimeoutExpired as error:
            raise CalabashError(
                f"the MPS control daemon at {self.pipe} does not answer within {ASK_S:g} s", reason=Reason.TIMEOUT
            ) from error
        if done.returncode != 0:
            raise CalabashError(
                f"there is no MPS control daemon at {self.pipe}: {done.stderr.strip()[:200]}", reason=Reason.NOT_FOUND
            )
        return done.stdout

    def servers(self) -> tuple[int, ...]:
        """Return the pids of the daemon's servers."""
        return _pids(self.ask("get_server_list"))

    def server_state(self, server: int) -> ServerState | None:
        """Return the state of a server; None if it does not exist."""
        status, _, rest = self.ask(f"get_server_status {server}", f"get_client_list {server}").partition("\n")
        try:
            return ServerState(pid=server, status=ServerStatus(status.strip()), clients=_pids(rest))
        except ValueError:
            return None

    def start_server(self, uid: int) -> None:
        """Start a server for a user. A multi-user daemon starts one server, which serves all users."""
        self.ask(f"start_server -uid {uid}")

    def set_share(self, server: int, *, percent: int, memory_mib: int, also_next: bool) -> str:
        """Set the limits of clients that connect to a server from now on.

        Args:
            percent: percentage of the device's multiprocessors.
            memory_mib: most memory of the device in MiB; 0 is no limit.
            also_next: True to set the same limits as defaults for servers that are started later.

        Returns:
            "" if the server reports the same values afterwards, otherwise a text with the values that it reports.
        """
        answer = self.ask(
            *(_defaults(percent, memory_mib) if also_next else ()),
            f"set_active_thread_percentage {server} {percent}",
            f"set_device_pinned_mem_limit {server} {DEVICE} {memory_mib}M",
            *_questions(server),
        )
        said = _shares(answer)
        if said == (percent, memory_mib):
            return ""
        return f"it says {said[0]:g}% and {said[1]} MiB ({answer.strip()[:100]})"

    def share(self, server: int) -> tuple[float, int]:
        """Return the limits that a server sets for new clients: percentage of multiprocessors, and MiB (0: no limit)."""
        return _shares(self.ask(*_questions(server)))

    def set_defaults(self, *, percent: int, memory_mib: int) -> None:
        """Set the limits with which the next servers start; parameters as for ``set_share``."""
        self.ask(*_defaults(percent, memory_mib))

    def terminate(self, server: int, client: int) -> None:
        """End the work of a client, given by the pids of its server and itself.

        The client's process continues without the device.
        """
        self.ask(f"terminate_client {server} {client}")

    def quit(self) -> None:
        """End the daemon and its servers now, also if they have clients."""
        self.ask("quit -t 0")

    def faulting_client(self) -> int:
        """Return the pid of the client that caused the last fatal fault logged since the last call.

        Returns 0 if no fault was logged, and -1 if the log does not name the client.
        """
        try:
            with (self.log / "server.log").open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                begun = self._read_to if self._read_to <= size else 0  # the log was replaced
                file.seek(max(begun, size - _LOG_BYTES_MAX))
                text = file.read(_LOG_BYTES_MAX).decode(errors="replace")
        except OSError:
            return 0
        self._read_to = size
        found = _CULPRIT.findall(text)
        return (int(found[-1]) or -1) if found else 0

    def skip_log(self) -> None:
        """Skip what the log holds so far; the next ``faulting_client`` reads only later lines."""
        try:
            self._read_to = (self.log / "server.log").stat().st_size
        except OSError:
            self._read_to = 0

    def _program(self) -> Path:
        return find_program(self._environment, self._files)

    def _whole(self, program: Path) -> dict[str, str]:
        return program_environment(program, self._environment, self._files) | self._own


def _defaults(percent: int, memory_mib: int) -> tuple[str, str]:
    return (
        f"set_default_active_thread_percentage {percent}",
        f"set_default_device_pinned_mem_limit {DEVICE} {memory_mib}M",
    )


def _questions(server: int) -> tuple[str, str]:
    return f"get_active_thread_percentage {server}", f"get_device_pinned_mem_limit {server} {DEVICE}"


def _shares(answer: str) -> tuple[float, int]:
    """Return percent and MiB from the last two lines of an answer; (-1, -1) if they cannot be read."""
    lines = answer.splitlines()[-2:]
    try:
        return float(lines[0]), _mib(lines[1].strip())
    except (IndexError, ValueError):
        return -1.0, -1


def _pids(text: str) -> tuple[int, ...]:
    return tuple(int(line) for line in text.split()[:_PIDS_MAX] if line.isdecimal())


def _mib(text: str) -> int:
    """Return the MiB of texts like ``8G`` and ``900M``; 0 (no limit) for any other text."""
    if text[-1:] in {"G", "M"} and text[:-1].isdecimal():
        return int(text[:-1]) * (1024 if text.endswith("G") else 1)
    return 0
