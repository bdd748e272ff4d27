"""Forked processes of any user that start programs as ``calabash run --port`` does."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.api_client import PathClient
from tests.daemons.users import User

from calabash.adapters.pool.entering import environment_with
from calabash.adapters.pool.entry import run_behind
from calabash.model.errors import CalabashError

PLAIN = {"PATH": "/usr/bin:/bin"}


class ForkedCaller:
    """Fork of the test that becomes a user, runs ``action`` and exits with its result. Input and output are pipes."""

    def __init__(self, user: User | None, action: Callable[[], int]) -> None:
        reading, self.stdin = os.pipe()
        self.stdout, writing = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                for number, descriptor in enumerate((reading, writing, writing)):
                    os.dup2(descriptor, number)
                os.closerange(3, 1024)
                os.chdir("/")
                if user is not None:
                    os.setgroups([])
                    os.setgid(user.gid)
                    os.setuid(user.uid)
                os._exit(action())
            except CalabashError as error:
                os.write(1, f"refused {error.reason}: {error.message}\n".encode())
            except BaseException as error:
                os.write(1, f"broken: {error!r}\n".encode())
            os._exit(1)
        os.close(reading)
        os.close(writing)
        self._open = True

    def says(self) -> str:
        """Return the next line of its output."""
        found = b""
        while not found.endswith(b"\n") and (byte := os.read(self.stdout, 1)):
            found += byte
        return found.decode().strip()

    def end(self) -> tuple[int, str]:
        """Close its input and wait for its end; return the exit code and the rest of its output."""
        if not self._open:
            return 0, ""
        self._open = False
        os.close(self.stdin)
        with os.fdopen(self.stdout) as pipe:
            said = pipe.read()
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1]), said


def behind(socket_path: str, command: Sequence[str], user: User | None) -> ForkedCaller:
    """Start a program in the network of an allocation's ports, through the allocation's entry socket.

    Args:
        socket_path: path of the entry socket.
        user: user that starts the program; None for the test's own.
    """
    return ForkedCaller(user, lambda: run_behind(socket_path, command, PLAIN))


def running(home: Path, command: Sequence[str], user: User | None = None, **body: Any) -> ForkedCaller:
    """Start a program on a slice with ports, as ``calabash run`` does."""

    def run() -> int:
        granted = PathClient(home).post(
            "/v1/allocations", {"command": list(command), "enter": True, **body}, timeout_s=60
        )
        environment = environment_with(PLAIN, granted["environment"], brokered=bool(granted["worker_socket"]))
        return run_behind(granted["door"], command, environment)

    return ForkedCaller(user, run)
