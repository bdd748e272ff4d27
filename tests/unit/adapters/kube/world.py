"""HTTP server whose behaviour a test scripts, for tests of the transport; and waiting for conditions."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable

from calabash.adapters.kube.http.access import ApiAccess

WAIT_S = 60.0
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


def until(check: Callable[[], bool], timeout_s: float = WAIT_S) -> None:
    """Wait until ``check`` returns True; fail after ``timeout_s`` seconds."""
    end = time.monotonic() + timeout_s
    while not check():
        assert time.monotonic() < end, f"not in {timeout_s} s"
        time.sleep(0.005)


def answer(body: bytes, status: str = "200 OK", *more: str) -> bytes:
    """Return a whole response."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *more, "", ""]
    return "\r\n".join(lines).encode() + body


def chunk(body: bytes) -> bytes:
    """Return one chunk of a chunked response."""
    return f"{len(body):x}\r\n".encode() + body + b"\r\n"


STREAM = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


class Scripted:
    """Server that calls ``serve`` with each connection, in a thread of its own."""

    def __init__(self, serve: Callable[[Line], None]) -> None:
        self._serve = serve
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self.lines: list[Line] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def access(self, authorization: Callable[[bool], str] = lambda _refused: "") -> ApiAccess:
        """Return the access to this server for a client."""
        return ApiAccess(
            host="127.0.0.1", port=self.port, prefix="", namespace="ns", authorization=authorization, tls=None
        )

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._socket.close()
        for line in self.lines:
            line.close()

    def _accept(self) -> None:
        while True:
            try:
                line = Line(self._socket.accept()[0])
            except OSError:
                return
            self.lines.append(line)
            threading.Thread(target=self._run, args=(line,), daemon=True).start()

    def _run(self, line: Line) -> None:
        try:
            self._serve(line)
        except OSError:
            line.close()


class Line:
    """One connection of the server to a client."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._file = connection.makefile("rb")
        self.requests: list[bytes] = []

    def request(self) -> bytes:
        """Return the next request, head and body; b"" if the client has disconnected."""
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            line = self._file.readline()
            if not line:
                return b""
            head += line
        size = 0
        for line in head.split(b"\r\n"):
            if line.lower().startswith(b"content-length:"):
                size = int(line.split(b":")[1])
        self.requests.append(head + self._file.read(size))
        return self.requests[-1]

    def send(self, *parts: bytes) -> None:
        self._connection.sendall(b"".join(parts))

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()
