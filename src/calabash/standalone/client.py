"""HTTP over the pool's Unix socket with the standard library alone: the command line must start fast."""

from __future__ import annotations

import http.client
import json
import os
import socket
from pathlib import Path
from typing import Any

from calabash.model.errors import CalabashError, Reason

SOCKET_FILE = "pool.sock"
_ANSWER_BYTES_MAX = 64 << 20
_SOCKET_PATH_BYTES_MAX = 107  # sun_path of a Unix socket, less its terminating zero


def socket_path(home: Path) -> Path:
    """The pool's socket. Raises BAD_REQUEST when the kernel could not take a path of that length."""
    path = home / SOCKET_FILE
    length = len(os.fsencode(path))
    if length > _SOCKET_PATH_BYTES_MAX:
        raise CalabashError(
            f"the path of the pool's socket has {length} bytes, the kernel takes {_SOCKET_PATH_BYTES_MAX} bytes: {path}",
            reason=Reason.BAD_REQUEST,
            hint="set CALABASH_HOME to a shorter path",
        )
    return path


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


class PoolClient:
    """The pool whose home is ``home``. Answers are decoded JSON; failures are CalabashError with the pool's reason."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def get(self, path: str, *, timeout_s: float = 30.0) -> Any:
        return self.call("GET", path, timeout_s=timeout_s)

    def post(self, path: str, body: Any = None, *, timeout_s: float = 30.0) -> Any:
        return self.call("POST", path, {} if body is None else body, timeout_s=timeout_s)

    def put(self, path: str, body: Any, *, timeout_s: float = 30.0) -> Any:
        return self.call("PUT", path, body, timeout_s=timeout_s)

    def delete(self, path: str, *, timeout_s: float = 30.0) -> Any:
        return self.call("DELETE", path, timeout_s=timeout_s)

    def call(self, method: str, path: str, body: Any = None, *, timeout_s: float = 30.0) -> Any:
        """One request. Raises CalabashError: POOL_DOWN when nobody answers, TIMEOUT, or the pool's own reason."""
        connection = _Connection(socket_path(self.home), timeout_s)
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"} if data is not None else {}
        try:
            connection.request(method, path, body=data, headers=headers)
            answer = connection.getresponse()
            content = answer.read(_ANSWER_BYTES_MAX)
        except TimeoutError:
            raise CalabashError(
                f"the pool did not answer {method} {path} within {timeout_s:g}s",
                reason=Reason.TIMEOUT,
                hint=f"see {self.home / 'pool.log'}",
            ) from None
        except PermissionError:
            raise CalabashError(
                f"the pool at {self.home} does not let this user in",
                reason=Reason.NOT_PERMITTED,
                hint="ask its owner for membership of the socket's group",
            ) from None
        except (OSError, http.client.HTTPException) as error:
            raise CalabashError(
                f"no pool answers at {self.home} ({error})",
                reason=Reason.POOL_DOWN,
                hint="start it with `calabash up`, or set CALABASH_HOME to where it runs",
            ) from None
        finally:
            connection.close()
        return _decoded(answer.status, content)


def _decoded(status: int, content: bytes) -> Any:
    try:
        value = json.loads(content) if content else None
    except ValueError:
        raise CalabashError(
            f"the pool's answer (status {status}) is not JSON", reason=Reason.POOL_DOWN, hint="is it another program?"
        ) from None
    if status < 400:
        return value
    said = value if isinstance(value, dict) else {}
    code = said.get("reason")
    raise CalabashError(
        str(said.get("message") or f"the pool answered with status {status}"),
        reason=Reason(code) if code in set(Reason) else Reason.CONFLICT,
        hint=str(said.get("hint") or ""),
    )
