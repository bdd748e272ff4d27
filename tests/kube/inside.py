"""Process 1 of a cluster's namespaces: starts the programs of the cluster, reaps them, and passes sockets to the tests.

It is started by ``warden.py`` and never imported by tests. Its standard input is a pipe on which nothing is written.
End of file means that the test process has ended. This process then exits, and the kernel kills every process of its
namespaces.

Requests arrive over a Unix socket that is visible from outside, one per connection, as a line of JSON: ``start``,
``signal``, ``wait``, ``list``, ``relay``, ``listen`` and ``connect``. The last two are answered with an open socket of
the private network. Connections to the listening socket that was inherited from outside are forwarded to the port of
the same number inside.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Request = Mapping[str, Any]
Answer = dict[str, Any]
_LONGEST_REQUEST = 1 << 20


class Programs:
    """Running programs by name. A name can be used again once its program has ended."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._pids: dict[str, int] = {}
        self._ended: dict[str, int] = {}
        self._changed = threading.Condition()

    def start(self, request: Request) -> Answer:
        name: str = request["name"]
        argv: list[str] = list(request["argv"])
        with self._changed:
            if name in self._pids and name not in self._ended:
                return {"error": f"{name} is running as process {self._pids[name]}"}
            if request.get("beside"):  # in the mount namespace of a program started before
                argv = ["nsenter", "-t", str(self._pids[request["beside"]]), "-m", "--", *argv]
            log = str(self._logs / f"{name}.log")
            append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            files = [
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, log, append, 0o644),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ]
            try:
                pid = os.posix_spawnp(
                    argv[0],
                    argv,
                    {**os.environ, **request.get("env", {})},
                    file_actions=files,
                    setsid=True,
                    setsigmask=[],
                    setsigdef=[signal.SIGPIPE, signal.SIGINT, signal.SIGTERM],
                )
            except OSError as error:
                return {"error": f"{argv[0]}: {error.strerror}"}
            self._pids[name] = pid
            self._ended.pop(name, None)
        return {"pid": pid}

    def signal(self, request: Request) -> Answer:
        name: str = request["name"]
        with self._changed:
            if name not in self._pids:
                return {"error": f"there is no program {name}; there are {', '.join(sorted(self._pids))}"}
            if name not in self._ended:
                os.kill(self._pids[name], int(request["signal"]))
        return {}

    def wait(self, request: Request) -> Answer:
        """Return the exit status of a program, negative for a signal; None if it still runs after the timeout."""
        name: str = request["name"]
        with self._changed:
            self._changed.wait_for(lambda: name in self._ended, float(request["timeout"]))
            return {"status": self._ended.get(name)}

    def list(self, request: Request) -> Answer:
        with self._changed:
            return {name: {"pid": pid, "status": self._ended.get(name)} for name, pid in self._pids.items()}

    def reap(self) -> None:
        """Reap every ended child of this process, including children that other processes left to process 1."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            with self._changed:
                for name, known in self._pids.items():
                    if known == pid and name not in self._ended:
                        self._ended[name] = os.waitstatus_to_exitcode(status)
                self._changed.notify_all()


def listen(request: Request) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((request.get("address", "127.0.0.1"), int(request["port"])))
    listener.listen(128)
    return listener


def connect(request: Request) -> socket.socket:
    return socket.create_connection((request.get("address", "127.0.0.1"), int(request["port"])), timeout=60)


def answer(connection: socket.socket, programs: Programs) -> None:
    """Read the request of a connection, answer it and close the connection."""
    with connection:
        line = connection.makefile("rb").readline(_LONGEST_REQUEST)
        if not line:
            return
        request: Request = json.loads(line)
        lent: socket.socket | None = None
        told: Answer = {}
        try:
            match request["do"]:
                case "listen":
                    lent = listen(request)
                case "connect":
                    lent = connect(request)
                case "relay":
                    serve(listen(request), relay, int(request["to"]))
                case "start" | "signal" | "wait" | "list" as what:
                    told = getattr(programs, what)(request)
                case other:
                    told = {"error": f"{other} is not a request"}
        except OSError as error:
            told = {"error": str(error), "errno": error.errno}
        except KeyError as error:
            told = {"error": f"there is no {error}"}
        data = json.dumps(told).encode() + b"\n"
        if lent is None:
            connection.sendall(data)
        else:
            with lent:
                socket.send_fds(connection, [data], [lent.fileno()])


def pump(source: socket.socket, sink: socket.socket) -> None:
    """Copy data from one socket to another until the end of the stream, and then shut down the other for writing."""
    try:
        while data := source.recv(1 << 16):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError as error:
                if error.errno not in (errno.ENOTCONN, errno.EBADF):
                    raise


def relay(client: socket.socket, port: int) -> None:
    """Forward a client's connection, from outside or from a pod, to a port inside.

    The connection is closed if the port refuses it.
    """
    with client:
        try:
            server = socket.create_connection(("127.0.0.1", port), timeout=60)
        except OSError:
            return
        with server:
            for end in (client, server):
                end.settimeout(None)
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            back = threading.Thread(target=pump, args=(server, client), daemon=True)
            back.start()
            pump(client, server)
            back.join()


def serve(listener: socket.socket, handle: Any, *more: object) -> None:
    """Start a thread that accepts connections, each in a thread of its own, until the process ends."""

    def accept() -> None:
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=handle, args=(connection, *more), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()


def raise_loopback() -> None:
    up_and_running = 0x41
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh14x", b"lo", up_and_running))  # SIOCSIFFLAGS


def end_with_input() -> None:
    while os.read(0, 4096):
        pass
    os._exit(0)


def main(root: Path, inherited: int) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    raise_loopback()
    programs = Programs(root / "log")
    outside = socket.socket(fileno=inherited)
    serve(outside, relay, outside.getsockname()[1])
    control = socket.socket(socket.AF_UNIX)
    control.bind(str(root / "control.sock"))
    control.listen(64)
    serve(control, answer, programs)
    threading.Thread(target=end_with_input, daemon=True).start()
    (root / "began").write_text(f"{time.time()}\n")
    while True:
        programs.reap()
        signal.sigtimedwait({signal.SIGCHLD}, 1.0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
