"""Proxy to the API server that can answer all requests with 429 or 500, and counts requests."""

from __future__ import annotations

import json
import socket
import ssl
import threading
import time
from collections import Counter
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.kube.cluster import Cluster

_PART = 1 << 16


class FaultyProxy:
    """Proxy that forwards each request to the API server over a new connection, or refuses it.

    ``refused`` lists the time and the request (``METHOD PATH``) of each refusal.

    Args:
        cluster: the cluster of the API server.
        name: name of the proxy in its certificate and in file names.
        port: port to listen on in the cluster's network; 0 for any free port in the network of the test process.
        retry_after_s: value of the header ``Retry-After`` in refusals with 429.
    """

    def __init__(self, cluster: Cluster, name: str, port: int, *, retry_after_s: int = 1) -> None:
        self._cluster = cluster
        self._retry_after_s = retry_after_s
        certificate, key = cluster.secrets.certificate(name)
        self._server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._server.load_cert_chain(certificate, key)
        self._client = ssl.create_default_context(cafile=str(cluster.secrets.authority))
        self._listener = cluster.listen(port) if port else socket.create_server(("127.0.0.1", 0))
        self._port = self._listener.getsockname()[1]
        self._name, self._certificate = name, certificate
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._status: HTTPStatus | None = None
        self.refused: list[tuple[float, str]] = []  # time, and method and path of the request
        self._ended = False
        threading.Thread(target=self._accept, daemon=True).start()

    def kubeconfig(self, of: Path) -> Path:
        """Return a copy of a kubeconfig whose server is this proxy."""
        content = json.loads(of.read_text())
        content["clusters"][0]["cluster"] = {
            "server": f"https://127.0.0.1:{self._port}",
            "certificate-authority": str(self._certificate),
        }
        path = of.with_name(f"{self._name}-{of.name}")
        path.write_text(json.dumps(content))
        return path

    def refuse(self, status: HTTPStatus) -> None:
        """Answer every request with this status from now on, and break all connections."""
        self._status = status
        self._cut()

    def pass_on(self) -> None:
        """Forward requests again."""
        self._status = None

    def refused_per_s(self) -> float:
        """Return the largest number of refusals within one second."""
        times = [moment for moment, _ in list(self.refused)]
        return max(Counter(int(moment - times[0]) for moment in times).values(), default=0)

    def most_refused(self) -> list[tuple[str, int]]:
        """Return the requests that were refused most often, with their numbers."""
        return Counter(asked for _, asked in list(self.refused)).most_common(6)

    def close(self) -> None:
        self._ended = True
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._cut()

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _cut(self) -> None:
        with self._lock:
            found, self._open = self._open, set()
        for one in found:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while not self._ended:
            try:
                line, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(line,), daemon=True).start()

    def _serve(self, line: socket.socket) -> None:
        try:
            line.settimeout(30)
            with self._server.wrap_socket(line, server_side=True) as near:
                head, rest = _head(near)
                if not head:
                    return
                first, *fields = head.decode("latin-1").split("\r\n")
                length = next((int(f.split(":")[1]) for f in fields if f.lower().startswith("content-length:")), 0)
                while len(rest) < length:
                    rest += near.recv(_PART)
                if self._status is not None:
                    near.sendall(self._refusal(first, self._status))
                    return
                kept = [field for field in fields if not field.lower().startswith("connection:")]
                self._pass_on(near, "\r\n".join([first, *kept, "Connection: close", "", ""]).encode("latin-1") + rest)
        except (OSError, ValueError):
            pass

    def _refusal(self, first: str, status: HTTPStatus) -> bytes:
        method, target, _ = first.split(" ", 2)
        self.refused.append((time.monotonic(), f"{method} {target.partition('?')[0]}"))
        kind = {"apiVersion": "v1", "kind": "Status", "status": "Failure", "code": status.value}
        body = json.dumps({**kind, "reason": "TooManyRequests" if status == 429 else "InternalError", "message": "no"})
        later = f"Retry-After: {self._retry_after_s}\r\n" if status == 429 else ""
        head = f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: application/json\r\n{later}"
        return f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}".encode()

    def _pass_on(self, near: socket.socket, request: bytes) -> None:
        near.settimeout(None)
        line = self._cluster.namespaces.connect(self._cluster.namespaces.port)
        line.settimeout(30)
        with self._client.wrap_socket(line, server_hostname="127.0.0.1") as far:
            far.settimeout(None)
            with self._lock:
                self._open |= {near, far}
            try:
                far.sendall(request)
                while part := far.recv(_PART):
                    near.sendall(part)
            finally:
                with self._lock:
                    self._open -= {near, far}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _head(line: socket.socket) -> tuple[bytes, bytes]:
    """Read until the end of a request's header; return the header and the bytes of the body that were read with it."""
    text = b""
    while b"\r\n\r\n" not in text:
        part = line.recv(_PART)
        if not part:
            return b"", b""
        text += part
    head, _, rest = text.partition(b"\r\n\r\n")
    return head, rest
