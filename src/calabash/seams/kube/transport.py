"""HTTP/1.1 to one API server: a pool of connections for calls, a connection of its own for each watch.

The standard library's client is used on purpose: a call costs 0.2 ms of CPU, a third of what the general clients take, and
the planner makes hundreds a second. One connection carries one call at a time, so a slow call delays no other.
"""

from __future__ import annotations

import http.client
import select
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from calabash.model.errors import Reason
from calabash.seams.kube.access import ApiAccess
from calabash.seams.kube.errors import KubeError

ANSWER_BYTES_MAX = 256 << 20
_IDLE_S = 45.0  # API servers close idle connections after 90 s
_CHUNK = 1 << 18
_CONNECT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpOrder:
    """One call: ``target`` is path and query; ``repeatable`` when doing it twice is as good as once."""

    method: str
    target: str
    body: bytes | None = None
    content_type: str = ""
    timeout_s: float = 30.0
    repeatable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpAnswer:
    """What came back."""

    status: int
    retry_after_s: float
    body: bytes


class _Connection(http.client.HTTPConnection):
    """A connection that notices a dead peer by itself: half-open lines answer no probe and are cut after about 25 s."""

    def __init__(self, access: ApiAccess, timeout_s: float) -> None:
        super().__init__(access.host, access.port, timeout=timeout_s)
        self._access = access
        self.idle_since = 0.0

    def connect(self) -> None:
        line = socket.create_connection((self.host, self.port), min(self.timeout or _CONNECT_S, _CONNECT_S))
        try:
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10)
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 25_000)
            if self._access.tls is not None:
                name = self._access.server_name or self.host
                self.sock = self._access.tls().wrap_socket(line, server_hostname=name)
            else:
                self.sock = line
            self.sock.settimeout(self.timeout)
        except BaseException:
            line.close()
            raise

    def usable(self) -> bool:
        """Whether an idle connection may carry another call: nothing is to be read from it, not even its end."""
        if self.sock is None or time.monotonic() - self.idle_since > _IDLE_S:
            return False
        poll = select.poll()
        poll.register(self.sock.fileno(), select.POLLIN)
        return not poll.poll(0)


class Transport:
    """Calls and watches to one API server, from any thread.

    Args:
        access: where, and as whom.
        connections: how many calls may be on their way at once; further ones wait their turn within their time-out.
        agent: the User-Agent, which API servers log.
    """

    def __init__(self, access: ApiAccess, *, connections: int = 16, agent: str = "calabash") -> None:
        self._access = access
        self._slots = threading.BoundedSemaphore(connections)
        self._lock = threading.Lock()
        self._idle: list[_Connection] = []
        self._agent = agent

    def call(self, order: HttpOrder) -> HttpAnswer:
        """Make a call; a refusal is an answer as well. Raises KubeError(API_DOWN) when there is none."""
        deadline = time.monotonic() + order.timeout_s
        if not self._slots.acquire(timeout=order.timeout_s):
            raise down(order, f"no connection became free in {order.timeout_s:g} s")
        try:
            answer = self._attempts(order, deadline, refused=False)
            if answer.status == http.client.UNAUTHORIZED:
                answer = self._attempts(order, deadline, refused=True)
            return answer
        finally:
            self._slots.release()

    def stream(self, order: HttpOrder, silence_s: float) -> HttpStream:
        """Open a watch; its reads fail after ``silence_s`` without a byte."""
        for refused in (False, True):
            connection = _Connection(self._access, order.timeout_s)
            try:
                self._send(connection, order, refused=refused)
                answer = connection.getresponse()
                if answer.status == http.client.UNAUTHORIZED and not refused:
                    connection.close()
                    continue
                if connection.sock is not None:
                    connection.sock.settimeout(silence_s)
                return HttpStream(connection, answer, order)
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                raise down(order, _words(error)) from error
            except BaseException:
                connection.close()
                raise
        raise AssertionError("unreachable")

    def close(self) -> None:
        """Close what is idle."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _attempts(self, order: HttpOrder, deadline: float, *, refused: bool) -> HttpAnswer:
        """One attempt, and a second one on a fresh connection where the first was an old one that had been closed."""
        connection = self._take()
        reused = connection is not None
        if connection is None:
            connection = _Connection(self._access, order.timeout_s)
        try:
            return self._attempt(connection, order, deadline, refused=refused)
        except (OSError, http.client.HTTPException) as error:
            if not (reused and order.repeatable) or isinstance(error, TimeoutError):
                raise down(order, _words(error)) from error
        try:
            return self._attempt(_Connection(self._access, order.timeout_s), order, deadline, refused=refused)
        except (OSError, http.client.HTTPException) as error:
            raise down(order, _words(error)) from error

    def _attempt(self, connection: _Connection, order: HttpOrder, deadline: float, *, refused: bool) -> HttpAnswer:
        try:
            connection.timeout = max(deadline - time.monotonic(), 0.001)
            if connection.sock is not None:
                connection.sock.settimeout(connection.timeout)
            self._send(connection, order, refused=refused)
            response = connection.getresponse()
            body = _read(response, connection, deadline)
        except BaseException:
            connection.close()
            raise
        if response.will_close:
            connection.close()
        else:
            connection.idle_since = time.monotonic()
            with self._lock:
                self._idle.append(connection)
        after = response.getheader("Retry-After", "")
        return HttpAnswer(status=response.status, retry_after_s=float(after) if after.isdigit() else 0.0, body=body)

    def _send(self, connection: _Connection, order: HttpOrder, *, refused: bool) -> None:
        headers: Mapping[str, str] = {
            "Accept": "application/json",
            "User-Agent": self._agent,
            **({"Content-Type": order.content_type} if order.content_type else {}),
            **({"Authorization": header} if (header := self._access.authorization(refused)) else {}),
        }
        connection.request(order.method, self._access.prefix + order.target, order.body, headers)

    def _take(self) -> _Connection | None:
        """The connection used last, so that those not needed grow old; the old ones are closed on the way."""
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection = self._idle.pop()
            if connection.usable():
                return connection
            connection.close()


class HttpStream:
    """The lines of a watch as they come."""

    def __init__(self, connection: _Connection, response: http.client.HTTPResponse, order: HttpOrder) -> None:
        self._connection, self._response, self._order = connection, response, order
        self._socket = connection.sock
        self._closed = False
        self.status = response.status

    def read(self) -> bytes:
        """What has come, at least one byte; empty at the end. Raises KubeError(API_DOWN) when the line broke."""
        try:
            return self._response.read1(_CHUNK)
        except TimeoutError as error:
            raise down(self._order, "nothing came, not even a bookmark") from error
        except (OSError, ValueError, AttributeError, http.client.HTTPException) as error:
            if self._closed:
                return b""
            raise down(self._order, _words(error)) from error

    def close(self) -> None:
        """Cut the line; from any thread. A reader that waits sees the end."""
        self._closed = True
        if self._socket is not None:
            with suppress(OSError):
                # The plain socket's own: that of the TLS layer takes the session away from under a reading thread.
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def release(self) -> None:
        """Give the descriptors back; by the reader, when it reads no more."""
        self.close()
        with suppress(OSError, ValueError):
            self._response.close()
        self._connection.close()


def down(order: HttpOrder, why: str) -> KubeError:
    """There was no answer."""
    return KubeError(f"{order.method} {order.target.partition('?')[0]}: {why}", reason=Reason.API_DOWN)


def _read(response: http.client.HTTPResponse, connection: _Connection, deadline: float) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            raise TimeoutError
        if connection.sock is not None:
            connection.sock.settimeout(remaining)
        part = response.read1(_CHUNK)  # what has come: `read` would wait for all of it, however slowly it comes
        if not part:
            if response.length:
                raise http.client.IncompleteRead(b"", response.length)
            response.close()  # gives the connection back; `read1` does not see that it has reached the end
            return parts[0] if len(parts) == 1 else b"".join(parts)
        parts.append(part)
        size += len(part)
        if size > ANSWER_BYTES_MAX:
            raise http.client.HTTPException(f"more than {ANSWER_BYTES_MAX} bytes")


def _words(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return str(error) or type(error).__name__
