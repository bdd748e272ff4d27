"""Web server that records all that it receives, in a process of its own, as another user's program on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

WAIT_S = 60.0
FORGED = b'<!doctype html><title>forged</title><main id="main"><div id="live">forged page</div></main>'
FORGED += b"<script>window.forged = 1</script>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """A received request."""

    method: str
    path: str
    headers: list[tuple[str, str]]
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorder:
    """A server on ``address``; its requests are in a file."""

    address: tuple[str, int]
    file: Path

    def received(self) -> list[Received]:
        """Return all requests until now."""
        return recorded(self.file)


def recorded(file: Path) -> list[Received]:
    """Return all requests that are in the file."""
    found = [json.loads(line) for line in file.read_text().splitlines()]
    return [
        Received(method=m, path=p, headers=[(n, v) for n, v in headers], body=bytes.fromhex(b))
        for m, p, headers, b in found
    ]


@contextmanager
def recorder(file: Path, *, port: int = 0) -> Iterator[Recorder]:
    """Run the server in a process of its own."""
    file.touch()
    process = subprocess.Popen(
        [sys.executable, "-c", Path(__file__).read_text(), str(port), str(file)], stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        taken = process.stdout.readline()
        assert taken, "the recorder could not listen"
        yield Recorder(address=("127.0.0.1", int(taken)), file=file)
    finally:
        process.kill()
        process.wait(WAIT_S)
        if process.stdout:
            process.stdout.close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    record = -1

    def _take(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        line = json.dumps([self.command, self.path, list(self.headers.items()), body.hex()])
        os.write(self.record, line.encode() + b"\n")
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.send_header("content-length", str(len(FORGED)))
        self.end_headers()
        self.wfile.write(FORGED)

    do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = _take  # noqa: N815

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def serve(port: int, file: str) -> None:
    """Record all requests to that port in the file; the port is printed."""
    _Handler.record = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    deadline_s = time.monotonic() + WAIT_S
    while True:
        try:
            server = ThreadingHTTPServer(("127.0.0.1", port), _Handler)
            break
        except OSError:  # connections of the server before it are still being ended
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.1)
    os.write(1, f"{server.server_address[1]}\n".encode())
    server.serve_forever()


if __name__ == "__main__":
    serve(int(sys.argv[1]), sys.argv[2])
