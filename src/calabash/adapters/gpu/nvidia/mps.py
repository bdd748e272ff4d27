"""NVIDIA's multi-process service: one control daemon, asked through its own program.

A daemon lives in a directory of its own: ``pipe`` is where programs reach it, ``log`` what it and its servers have
written. Every question is one short run of the program with a deadline, so a daemon that hangs costs its asker no more.
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
DEVICE = 0  # a daemon has one, and the service takes limits by number everywhere, by UUID not
SOCKET_PATH_MAX = 90  # what remains of a socket's path when the names of its files are taken off
_LOG_BYTES_MAX = 1 << 20
_PIDS_MAX = 4096
# "Client {3, 4711} encountered a fatal fault on device GPU-...": who it was; other drivers may say it otherwise.
_CULPRIT = re.compile(r"[Cc]lient \{\d+, (\d+)\} encountered a fatal")


class ServerStatus(StrEnum):
    """What a server says of itself."""

    INITIALIZING = "INITIALIZING"
    ACTIVE = "ACTIVE"
    FAULT = "FAULT"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLook:
    """A server at one moment, with its clients by pid."""

    pid: int
    status: ServerStatus
    clients: tuple[int, ...] = ()


def find_program(environment: Mapping[str, str], files: DriverFiles = OWN_FILES) -> Path:
    """The control program: the simulated one on a simulated node, else ours, else the host's, as we see it. Raises
    CalabashError(BAD_FILE) when there is none."""
    found = driver_program(PROGRAM, environment, files)
    if found is None:
        raise CalabashError(
            f"{PROGRAM} is not installed, so mode mps cannot be served",
            reason=Reason.BAD_FILE,
            hint="it comes with the driver: nvidia-compute-utils, or make native for a simulated node",
        )
    return found


class MpsControl:
    """The daemon of one directory."""

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
        """Those that live in this directory for this device, whoever has started them: also one that was never written down."""
        return running(PROGRAM, self._here, f"CUDA_VISIBLE_DEVICES={self._own['CUDA_VISIBLE_DEVICES']}", word="-f")

    def everybody(self) -> list[Process]:
        """All daemons and servers that live in this directory, those of a device that is no more among them."""
        return [*running(PROGRAM, self._here, word="-f"), *running(SERVER_PROGRAM, self._here)]

    @property
    def _here(self) -> str:
        return f"CUDA_MPS_PIPE_DIRECTORY={self.pipe}"

    @property
    def reach(self) -> tuple[tuple[str, str], ...]:
        """What leads a program to it."""
        return (("CUDA_MPS_PIPE_DIRECTORY", str(self.pipe)),)

    def start(self, *, multiuser: bool) -> subprocess.Popen[bytes]:
        """Start the daemon as a child that outlives us. Raises CalabashError."""
        program = self._program()
        own = self.pipe.parent
        for directory, mode in ((own.parent, 0o711), (own, 0o711), (self.pipe, 0o711), (self.log, 0o700)):
            directory.mkdir(mode=mode, parents=True, exist_ok=True)
            directory.chmod(mode)
        command = [str(program), "-f", *(["--multiuser-server"] if multiuser else [])]
        self.forget_log()
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
        """What the commands answer, one after the other. Raises CalabashError: TIMEOUT, or NOT_FOUND without a daemon."""
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
        """The pids of its servers."""
        return _pids(self.ask("get_server_list"))

    def look(self, server: int) -> ServerLook | None:
        """One server; None when it is not there."""
        status, _, rest = self.ask(f"get_server_status {server}", f"get_client_list {server}").partition("\n")
        try:
            return ServerLook(pid=server, status=ServerStatus(status.strip()), clients=_pids(rest))
        except ValueError:
            return None

    def start_server(self, uid: int) -> None:
        """Have a server started for a user, or for all of a daemon that serves all."""
        self.ask(f"start_server -uid {uid}")

    def set_share(self, server: int, *, percent: int, memory_mib: int, also_next: bool) -> str:
        """What clients that come from now on get; ``also_next``: those of the next server too. "" when the server then says
        the same, else what it says."""
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
        """Percent and MiB that a server gives to clients that come now; MiB 0: no limit."""
        return _shares(self.ask(*_questions(server)))

    def set_defaults(self, *, percent: int, memory_mib: int) -> None:
        """What the next server starts with."""
        self.ask(*_defaults(percent, memory_mib))

    def terminate(self, server: int, client: int) -> None:
        """End the work of one client; its process goes on without the card."""
        self.ask(f"terminate_client {server} {client}")

    def quit(self) -> None:
        """End daemon and servers now, whoever is there."""
        self.ask("quit -t 0")

    def culprit(self) -> int:
        """Who made the last fatal fault, by what the server has written since it was asked last; 0: there was none, -1: it
        does not say who."""
        try:
            with (self.log / "server.log").open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                begun = self._read_to if self._read_to <= size else 0  # another file now
                file.seek(max(begun, size - _LOG_BYTES_MAX))
                text = file.read(_LOG_BYTES_MAX).decode(errors="replace")
        except OSError:
            return 0
        self._read_to = size
        found = _CULPRIT.findall(text)
        return (int(found[-1]) or -1) if found else 0

    def forget_log(self) -> None:
        """What has been written so far is no news."""
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
    """Its last two lines, whatever was said before them."""
    lines = answer.splitlines()[-2:]
    try:
        return float(lines[0]), _mib(lines[1].strip())
    except (IndexError, ValueError):
        return -1.0, -1


def _pids(text: str) -> tuple[int, ...]:
    return tuple(int(line) for line in text.split()[:_PIDS_MAX] if line.isdecimal())


def _mib(text: str) -> int:
    """``8G`` and ``900M``; anything else is no limit."""
    if text[-1:] in {"G", "M"} and text[:-1].isdecimal():
        return int(text[:-1]) * (1024 if text.endswith("G") else 1)
    return 0
