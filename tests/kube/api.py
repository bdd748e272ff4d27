"""The plainest client of a Kubernetes API server: paths and JSON, a connection for each thread."""

from __future__ import annotations

import http.client
import json
import ssl
import threading
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

Json = dict[str, Any]
_PATCHES = {
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "json": "application/json-patch+json",
    "apply": "application/apply-patch+yaml",
}


class RefusedError(Exception):
    """The API server said no; ``status`` is the number, the text is its own."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text}")
        self.status = status


class Api:
    """Requests to one server as one user. Safe to use from several threads."""

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
        """What is not JSON: health, metrics, logs."""
        return self._send("GET", path, None, "application/json").decode()

    def create(self, path: str, body: Json) -> Json:
        return self._request("POST", path, body)

    def delete(self, path: str, body: Json | None = None) -> Json:
        return self._request("DELETE", path, body)

    def patch(self, path: str, body: object, style: str = "merge") -> Json:
        return self._request("PATCH", path, body, _PATCHES[style])

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
            answer = self._once(method, path, data, headers)  # the kept connection had been closed
        read = answer.read()
        if answer.status >= 400:
            raise RefusedError(answer.status, _message(read))
        return read

    def _once(self, method: str, path: str, data: bytes | None, headers: dict[str, str]) -> http.client.HTTPResponse:
        if not hasattr(self._of_thread, "connection"):
            trust = ssl.create_default_context(cafile=str(self._authority))
            self._of_thread.connection = http.client.HTTPSConnection(self._address, context=trust, timeout=30)
        connection: http.client.HTTPSConnection = self._of_thread.connection
        connection.request(method, path, data, headers)
        return connection.getresponse()


def _message(answer: bytes) -> str:
    try:
        return str(json.loads(answer)["message"])
    except (ValueError, KeyError, TypeError):
        return answer[:500].decode(errors="replace")
