"""Minimal client of a Kubernetes API server for tests: it sends JSON to paths, over one connection per thread."""

from __future__ import annotations

import errno
import http.client
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from calabash.adapters.host.readable import readable

Json = dict[str, Any]
_PATCHES = {
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "json": "application/json-patch+json",
    "apply": "application/apply-patch+yaml",
}


class RefusedError(Exception):
    """Error answer of the API server: the HTTP status, and the server's message as text."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text}")
        self.status = status


class Api:
    """HTTP requests to one API server as one user. Safe to use from several threads.

    Args:
        server: URL of the API server.
        authority: file with the authority of the server's certificate.
        token: token of the user.
    """

    def __init__(self, server: str, authority: Path, token: str) -> None:
        self._address = urlsplit(server).netloc
        self._authority = authority
        self._token = token
        self._of_thread = threading.local()

    def get(self, path: str) -> Json:
        return self._request("GET", path)

    def exists(self, path: str) -> bool:
        try:
            self.get(path)
        except RefusedError as refused:
            if refused.status == 404:
                return False
            raise
        return True

    def text(self, path: str) -> str:
        """Return a response that is not JSON, such as health, metrics or logs."""
        return self._send("GET", path, None, "application/json").decode()

    def create(self, path: str, body: Json) -> Json:
        return self._request("POST", path, body)

    def delete(self, path: str, body: Json | None = None) -> Json:
        return self._request("DELETE", path, body)

    def patch(self, path: str, body: object, style: str = "merge") -> Json:
        return self._request("PATCH", path, body, _PATCHES[style])

    def watch(self, path: str) -> Watch:
        """Watch the list at ``path``, from now or from the ``resourceVersion`` in the path's query."""
        return Watch(self._connection(timeout_s=None), path, self._token)

    def _connection(self, timeout_s: float | None = 60) -> http.client.HTTPSConnection:
        trust = ssl.create_default_context(cafile=str(self._authority))
        return http.client.HTTPSConnection(self._address, context=trust, timeout=timeout_s)

    def _request(self, method: str, path: str, body: object = None, kind: str = "application/json") -> Json:
        answer: Json = json.loads(self._send(method, path, body, kind))
        return answer

    def _send(self, method: str, path: str, body: object, kind: str) -> bytes:
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": kind}
        data = None if body is None else json.dumps(body).encode()
        fresh = not hasattr(self._of_thread, "connection")
        try:
            answer = self._once(method, path, data, headers)
        except (http.client.HTTPException, OSError):
            self._of_thread.__dict__.clear()
            if fresh or method != "GET":
                raise
            answer = self._once(method, path, data, headers)  # the kept connection was closed by the server
        read = answer.read()
        if answer.status >= 400:
            raise RefusedError(answer.status, _message(read))
        return read

    def _once(self, method: str, path: str, data: bytes | None, headers: dict[str, str]) -> http.client.HTTPResponse:
        if _closed(getattr(self._of_thread, "connection", None)):
            self._of_thread.connection = self._connection()
        connection: http.client.HTTPSConnection = self._of_thread.connection
        connection.request(method, path, data, headers)
        return connection.getresponse()


def _closed(connection: http.client.HTTPSConnection | None) -> bool:
    """Return True if there is no connection, or the server has closed it while it was idle.

    No request is pending on an idle connection, so if its socket is readable, the server has closed it.
    """
    if connection is None:
        return True
    kept: socket.socket | None = connection.sock
    if kept is None or (kept.fileno() >= 0 and not readable(kept.fileno(), 0)):
        return False
    connection.close()
    return True


class Watch:
    """Iterator over events ``{"type": ..., "object": ...}`` until the server ends the stream or ``close`` is called."""

    def __init__(self, connection: http.client.HTTPSConnection, path: str, token: str) -> None:
        self._connection = connection
        query = "&watch=1" if "?" in path else "?watch=1"
        connection.request("GET", path + query, headers={"Authorization": f"Bearer {token}"})
        self._socket = connection.sock
        self._answer = connection.getresponse()
        if self._answer.status >= 400:
            raise RefusedError(self._answer.status, _message(self._answer.read()))

    def __iter__(self) -> Iterator[Json]:
        try:
            while line := self._answer.readline():
                yield json.loads(line)
        except (OSError, http.client.HTTPException, ValueError):
            return
        finally:
            self._connection.close()

    def close(self) -> None:
        """End the stream; called from another thread than the one that reads the events."""
        try:
            # Not the TLS socket's own: it forgets its session first, and the reader would then read ciphertext.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
        except OSError as error:
            if error.errno not in (errno.ENOTCONN, errno.EBADF):  # closed by the peer, or by the reader
                raise


def _message(answer: bytes) -> str:
    try:
        return str(json.loads(answer)["message"])
    except (ValueError, KeyError, TypeError):
        return answer[:500].decode(errors="replace")
