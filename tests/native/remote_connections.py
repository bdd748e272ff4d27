"""Stand-ins for the network between a program and a host of workers: a minimal broker, and a proxy that can cut connections."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from pathlib import Path

from tests.native import remote_greetings as hello

LEASE, KEY = "0123456789abcdef", bytes(range(1, 33))
IDENTITY = re.compile(rb"([0-9a-f]{1,64})\.([0-9a-f]{32})")


def lease_file(
    path: Path, port: int, *, host: str = "127.0.0.1", lease: str = LEASE, key: bytes = KEY, grace_s: int = 60
) -> Path:
    """Write a lease file for a program that uses the broker at ``port``."""
    path.write_text(f"server={host}:{port}\nlease={lease}\nkey={key.hex()}\ngrace_s={grace_s}\n")
    return path


class MinimalBroker:
    """A minimal broker: accepts TCP connections, reads the identity and hands them to the host."""

    def __init__(self, workers: Path, *, host: str = "127.0.0.1") -> None:
        self._host = workers
        self._listener = socket.create_server((host, 0), backlog=64)
        self.port: int = self._listener.getsockname()[1]
        self.handed: list[str] = []  # sessions, in order
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                self._hand(connection)

    def _hand(self, connection: socket.socket) -> None:
        connection.settimeout(5)
        try:
            found = IDENTITY.search(connection.recv(4096, socket.MSG_PEEK))
            connection.settimeout(None)
            if found is None:
                return
            self.handed.append(found[2].decode())
            with hello.connect(self._host) as host:
                session = bytes.fromhex(found[2].decode())
                hello.send(host, hello.greeting(hello.HANDOVER, session=session, key=KEY), connection.fileno())
                hello.answer(host)
        except OSError:
            return  # the host is gone, or the client


class CuttableProxy:
    """A proxy whose connections can be cut, and which accepts none while it is down."""

    def __init__(self, port: int, delay_s: float = 0.0) -> None:
        self._to = port
        self._delay_s = delay_s
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port: int = self._listener.getsockname()[1]
        self.passed = 0  # bytes, both ways
        self._is_down = False
        self._open: list[socket.socket] = []
        threading.Thread(target=self._run, daemon=True).start()

    def cut(self) -> None:
        """Close both ends; data in transit is lost."""
        self._is_down = True
        for end in self._open:
            try:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        self._open.clear()

    def mend(self) -> None:
        self._is_down = False

    def close(self) -> None:
        self.cut()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _run(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            if self._is_down:
                near.close()
                continue
            try:
                far = socket.create_connection(("127.0.0.1", self._to))
            except OSError:
                near.close()
                continue
            for end in (near, far):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._open += [near, far]
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self._carry, args=(one, other), daemon=True).start()

    def _carry(self, one: socket.socket, other: socket.socket) -> None:
        try:
            while data := one.recv(1 << 18):
                self.passed += len(data)
                if self._delay_s:
                    time.sleep(self._delay_s)
                other.sendall(data)
        except OSError:
            pass
        for end in (one, other):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
