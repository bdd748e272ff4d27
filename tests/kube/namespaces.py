"""Private mount, network, PID, IPC and UTS namespaces for one cluster, owned by the test process.

All processes inside end with the test process, even if it is killed, and leave nothing behind. Sockets of the private
network can be passed to the test process. ``listen`` returns a socket on which it accepts connections of programs
inside, to serve a webhook or a scheduler extender. ``connect`` returns a connection to a port inside.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

_ENTER = ("--mount", "--net", "--pid", "--ipc", "--uts")


class Namespaces:
    """The namespaces of a cluster, and the programs that run in them.

    ``root`` is the cluster's directory, which has the same path outside and inside. Connections from outside to
    ``port`` reach the same port inside. ``pid`` is the PID of process 1 of the namespaces, as seen outside.
    """

    def __init__(self) -> None:
        self._warden = subprocess.Popen(
            [sys.executable, "-S", "-E", str(Path(__file__).with_name("warden.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C ends only the tests; the warden cleans up afterwards
        )
        assert self._warden.stdout is not None
        told = json.loads(self._warden.stdout.readline() or b"{}")
        if not told:
            raise RuntimeError(f"the warden of the namespaces ended with {self._warden.wait(60)}")
        self.root = Path(told["root"])
        self.port = int(told["port"])
        self._wait_for_start()
        with self._asked({"do": "list"}) as connection:
            connection.makefile("rb").readline()
            peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            self.pid: int = struct.unpack("3i", peer)[0]

    def _wait_for_start(self) -> None:
        end = time.monotonic() + 60
        while not (self.root / "began").exists():
            if self._warden.poll() is not None or time.monotonic() > end:
                self.close()
                raise RuntimeError("the namespaces did not come up (what unshare said is on standard error)")
            time.sleep(0.005)

    def start(
        self, name: str, argv: Sequence[str], env: Mapping[str, str] | None = None, *, beside: str | None = None
    ) -> int:
        """Start a program; return its PID inside. Its output is appended to ``log/<name>.log``.

        If ``beside`` is the name of another program, the program runs in the mount namespace of that program.
        """
        request = {"do": "start", "name": name, "argv": list(argv), "env": dict(env or {}), "beside": beside}
        return int(self._ask(request)["pid"])

    def kill(self, name: str, number: int = signal.SIGKILL, *, timeout_s: float = 60) -> int:
        """Send a signal to a program and wait for its end; return the exit status, negative for a signal."""
        self.signal(name, number)
        status = self.wait(name, timeout_s=timeout_s)
        if status is None:
            raise TimeoutError(f"{name} lives {timeout_s} s after signal {number}")
        return status

    def signal(self, name: str, number: int) -> None:
        """Send a signal without waiting: SIGSTOP makes a program hang, SIGCONT lets it continue."""
        self._ask({"do": "signal", "name": name, "signal": int(number)})

    def wait(self, name: str, *, timeout_s: float) -> int | None:
        """Return the exit status of a program; None if it still runs after the timeout."""
        status: int | None = self._ask({"do": "wait", "name": name, "timeout": timeout_s}, timeout_s + 10)["status"]
        return status

    def programs(self) -> dict[str, int | None]:
        """Return the exit status of each program that was started, by its name; None for a program that still runs."""
        return {name: entry["status"] for name, entry in self._ask({"do": "list"}).items()}

    def enter(self, argv: Sequence[str], *, beside: str | None = None) -> list[str]:
        """Return a command line that runs ``argv`` inside, in the mount namespace of the program ``beside`` if given.

        The process is killed when its parent process ends.
        """
        line = ["nsenter", "-t", str(self.pid), *_ENTER, "--", "setpriv", "--pdeathsig", "KILL"]
        if beside is not None:
            line += ["nsenter", "-t", str(self.number(beside)), "--mount", "--"]
        return [*line, *argv]

    def mounts_of(self, name: str) -> str:
        """Return the identifier of a program's mount namespace, for ``processes_in``."""
        return os.readlink(f"/proc/{self.pid}/root/proc/{self.number(name)}/ns/mnt")

    def number(self, name: str) -> int:
        """Return the PID of a program inside the namespaces."""
        return int(self._ask({"do": "list"})[name]["pid"])

    def listen(self, port: int, address: str = "127.0.0.1") -> socket.socket:
        """Return a listening socket of the private network."""
        return self._lent({"do": "listen", "port": port, "address": address})

    def connect(self, port: int, address: str = "127.0.0.1") -> socket.socket:
        """Return a connection to a port of the private network."""
        return self._lent({"do": "connect", "port": port, "address": address})

    def relay(self, address: str, port: int, to: int) -> None:
        """Forward connections to a port of an address of the private network to port ``to`` of its loopback address."""
        self._ask({"do": "relay", "port": port, "address": address, "to": to})

    def close(self) -> None:
        """End all processes inside and wait until the warden has cleaned up."""
        assert self._warden.stdin is not None
        self._warden.stdin.close()
        try:
            self._warden.wait(180)
        finally:
            assert self._warden.stdout is not None
            self._warden.stdout.close()

    def _asked(self, request: Mapping[str, Any], timeout_s: float = 60) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(timeout_s)
        connection.connect(str(self.root / "control.sock"))
        connection.sendall(json.dumps(request).encode() + b"\n")
        return connection

    def _ask(self, request: Mapping[str, Any], timeout_s: float = 60) -> dict[str, Any]:
        with self._asked(request, timeout_s) as connection:
            return _told(request, connection.makefile("rb").readline())

    def _lent(self, request: Mapping[str, Any]) -> socket.socket:
        with self._asked(request) as connection:
            line, numbers, _, _ = socket.recv_fds(connection, 4096, 1)
            _told(request, line)
            return socket.socket(fileno=numbers[0])


def processes_in(namespace: str, kind: str) -> list[int]:
    """Return the PIDs, as seen outside, of the processes in a namespace of a kind (``net``, ``mnt``, ...)."""
    found = []
    for path in Path("/proc").glob(f"[0-9]*/ns/{kind}"):
        with suppress(OSError):
            if os.readlink(path) == namespace:
                found.append(int(path.parts[2]))
    return found


def _told(request: Mapping[str, Any], line: bytes) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(line or b'{"error": "no answer"}')
    if "error" in answer:
        text = f"{request['do']}: {answer['error']}"
        raise (
            OSError(answer["errno"], os.strerror(answer["errno"]), text) if answer.get("errno") else RuntimeError(text)
        )
    return answer
