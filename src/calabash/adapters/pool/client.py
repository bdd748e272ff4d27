"""HTTP client over the pool's Unix socket with fast imports, for ``calabash run``.

It makes one request on one connection. Importing the standard library's HTTP client, pathlib or typing would take
longer than the pool takes to answer.
"""

from __future__ import annotations

import os
import socket
import struct
import time

import calabash
from calabash.adapters.pool.wire import ANSWER_BYTES_MAX, broken_by, coded, decode_content
from calabash.api.endpoints import VERSION_HEADER
from calabash.model.errors import CalabashError, Reason, cause
from calabash.transport.http1_client import ClientConnection, HttpError, write_request

TYPE_CHECKING = False  # as typing has it, without importing typing
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from calabash.api.endpoints import Endpoint

SOCKET_FILE = "pool.sock"
_SOCKET_PATH_BYTES_MAX = 107  # sun_path of a Unix socket, less its terminating zero
_DOWN_HINT = "start it with `calabash up`, or set CALABASH_HOME to where it runs"


def socket_path(home: str | os.PathLike[str]) -> str:
    """Return the path of the pool's socket. Raises BAD_REQUEST if it is longer than the kernel accepts."""
    path = os.path.join(home, SOCKET_FILE)
    length = len(os.fsencode(path))
    if length > _SOCKET_PATH_BYTES_MAX:
        raise CalabashError(
            f"the path of the pool's socket has {length} bytes, the kernel takes {_SOCKET_PATH_BYTES_MAX} bytes: {path}",
            reason=Reason.BAD_REQUEST,
            hint="set CALABASH_HOME to a shorter path",
        )
    return path


class WaitCallback:
    """Function that is called while a client waits for an answer: after ``first_s`` and then every ``every_s`` seconds."""

    def __init__(self, *, first_s: float, every_s: float, call: Callable[[], None]) -> None:
        self.first_s = first_s
        self.every_s = every_s
        self.call = call


class ApiClient:
    """Client of an HTTP API with endpoints; answers are decoded JSON, errors are CalabashError with the server's reason.

    A subclass implements :meth:`call`; all other code sends requests to declared endpoints.
    """

    def send(
        self,
        endpoint: Endpoint,
        *values: str,
        body: Any = None,
        query: Mapping[str, object] | None = None,
        timeout_s: float = 30.0,
        on_wait: WaitCallback | None = None,
    ) -> Any:
        """Make a request and return the decoded answer.

        Args:
            values: values of the variable segments of the endpoint's path.
            body: body of a POST or PUT; None for an empty object.
            query: parameters of the query string.
            on_wait: is called during the wait, if the client can interrupt its wait.
        """
        if body is None and endpoint.method in ("POST", "PUT"):
            body = {}
        target = endpoint.at(*values, query=query)
        return self.call(endpoint.method, target, body, timeout_s=timeout_s, on_wait=on_wait)

    def items(
        self, endpoint: Endpoint, *values: str, query: Mapping[str, object] | None = None, timeout_s: float = 30.0
    ) -> list[Any]:
        """Return all items of a list, page by page; arguments as for :meth:`send`."""
        found: list[Any] = []
        after: dict[str, object] = {}
        while True:
            page = self.send(endpoint, *values, query={**(query or {}), **after}, timeout_s=timeout_s)
            found += page["items"]
            if not page.get("next"):
                return found
            after = {"after": page["next"]}

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        timeout_s: float = 30.0,
        on_wait: WaitCallback | None = None,
    ) -> Any:
        """Make a request and return the decoded answer. ``path`` may have a query string, and is percent-encoded."""
        raise NotImplementedError


class PoolClient(ApiClient):
    """Client of the pool on this machine whose home is ``home``.

    Args:
        owner: user ID that must listen on the pool's socket; None for any user.
        down_hint: hint of the error for a pool that is not running.
    """

    def __init__(self, home: str | os.PathLike[str], *, owner: int | None = None, down_hint: str = _DOWN_HINT) -> None:
        self.home = home
        self._owner = owner
        self._down_hint = down_hint

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        timeout_s: float = 30.0,
        on_wait: WaitCallback | None = None,
    ) -> Any:
        """Make a request and return the decoded answer.

        Raises CalabashError: POOL_DOWN if no pool answers, TIMEOUT, or the pool's own reason.
        """
        who = f"the pool at {os.fspath(self.home)}"
        headers = {"Host": "localhost", "Connection": "close", VERSION_HEADER: calabash.__version__}
        request = write_request(method, path, headers, coded(body))
        try:
            status, content = _exchange(socket_path(self.home), request, timeout_s, on_wait, self._owner)
        except HttpError as error:
            raise broken_by(who, error) from None
        except TimeoutError:
            raise CalabashError(
                f"the pool did not answer {method} {path} within {timeout_s:g}s",
                reason=Reason.TIMEOUT,
                hint=f"see {os.fspath(self.home)}/pool.log",
            ) from None
        except PermissionError:
            raise CalabashError(
                f"the pool at {os.fspath(self.home)} does not let this user in",
                reason=Reason.NOT_PERMITTED,
                hint="ask its owner for membership of the socket's group",
            ) from None
        except OSError as error:
            why = "" if isinstance(error, FileNotFoundError | ConnectionRefusedError) else f": {cause(error)}"
            raise CalabashError(
                f"no pool answers at {os.fspath(self.home)}{why}",
                reason=Reason.POOL_DOWN,
                hint=self._down_hint,
            ) from None
        return decode_content(status, content, who=who)


def _exchange(
    address: str, request: bytes, timeout_s: float, on_wait: WaitCallback | None, owner: int | None
) -> tuple[int, bytes]:
    """Send the request and return the status and the body of the answer.

    Raises OSError, TimeoutError after ``timeout_s`` in all, NOT_PERMITTED if another user than ``owner`` listens on the
    socket; nothing is sent then.
    """
    deadline = time.monotonic() + timeout_s
    next_call_s = time.monotonic() + on_wait.first_s if on_wait else deadline
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        _connect(line, address, timeout_s)
        if owner is not None:
            _require_owner(line, address, owner)
        connection = ClientConnection(line)
        connection.send(request, deadline)
        while True:
            try:
                connection.read_head(min(deadline, next_call_s))
                break
            except TimeoutError:
                if on_wait is None or time.monotonic() >= deadline:
                    raise
                on_wait.call()
                next_call_s = time.monotonic() + on_wait.every_s
        return connection.status, connection.read_body(deadline, bytes_max=ANSWER_BYTES_MAX)


def _require_owner(connection: socket.socket, address: str, owner: int) -> None:
    """Raise NOT_PERMITTED if another user than ``owner`` listens, as the kernel recorded when the socket was opened."""
    size = struct.calcsize("iII")
    _, uid, _ = struct.unpack("iII", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    if uid != owner:
        raise CalabashError(
            f"the pool at {address} is not used: user id {uid} listens there, not {owner or 'root'}",
            reason=Reason.NOT_PERMITTED,
            hint="tell the administrator; CALABASH_HOME names another pool",
        )


def _connect(connection: socket.socket, address: str, timeout_s: float) -> None:
    """Connect with the kernel's own time-out.

    If the socket's backlog is full, a Python socket with a time-out would be refused at once; the kernel waits.
    """
    whole_s, part_s = divmod(timeout_s, 1.0)
    connection.setsockopt(
        socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(whole_s), int(part_s * 1e6) or 1)
    )
    try:
        connection.connect(address)
    except BlockingIOError:
        raise TimeoutError from None
    connection.settimeout(timeout_s)
