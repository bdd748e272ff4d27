"""Calls and watches to one API server over HTTP/1.1: pooled connections for calls, one connection for each watch.

A connection carries one call at a time, so that a slow call does not delay another.
"""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus

from calabash.adapters.kube.errors import AnswerTooLarge, KubeError
from calabash.adapters.kube.http.access import ApiAccess
from calabash.adapters.kube.http.counts import KUBE_COUNTS
from calabash.model.errors import Reason
from calabash.transport.http1_client import ClientConnection, TooLargeError, connect, secured, write_request

ANSWER_BYTES_MAX = 256 << 20
_WATCH = "WATCH"
_CONNECT_S = 5.0
_IDLE_S = 45.0  # API servers close idle connections after 90 s


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpOrder:
    """HTTP request.

    Args:
        target: path and query.
        repeatable: True if sending the request twice has the same effect as once.
        bytes_max: largest answer that is read.
    """

    method: str
    target: str
    body: bytes | None = None
    content_type: str = ""
    timeout_s: float = 30.0
    repeatable: bool = False
    bytes_max: int = ANSWER_BYTES_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpAnswer:
    """HTTP answer."""

    status: int
    retry_after_s: float
    body: bytes


class Transport:
    """Calls and watches to one API server, from any thread.

    Args:
        access: address and credentials.
        connections: largest number of concurrent calls; further calls wait within their time-out.
        agent: the User-Agent, which API servers log.
    """

    def __init__(self, access: ApiAccess, *, connections: int = 16, agent: str = "calabash") -> None:
        self._access = access
        self._slots = threading.BoundedSemaphore(connections)
        self._lock = threading.Lock()
        self._idle: list[ClientConnection] = []
        host = f"[{access.host}]" if ":" in access.host else access.host
        self._common = {"Host": f"{host}:{access.port}", "User-Agent": agent, "Accept": "application/json"}

    def call(self, order: HttpOrder) -> HttpAnswer:
        """Make a call and return the answer, which may be a refusal.

        Raises KubeError(API_DOWN) if there is no answer, AnswerTooLarge above ``order.bytes_max`` bytes.
        """
        deadline = time.monotonic() + order.timeout_s
        if not self._slots.acquire(timeout=order.timeout_s):
            raise down(order, f"no connection became free in {order.timeout_s:g} s")
        try:
            answer = self._attempts(order, deadline, refused=False)
            if answer.status == HTTPStatus.UNAUTHORIZED:
                answer = self._attempts(order, deadline, refused=True)
            KUBE_COUNTS.request(order.method, answer.status)
            return answer
        except KubeError:
            KUBE_COUNTS.request(order.method, 0)
            raise
        finally:
            self._slots.release()

    def stream(self, order: HttpOrder, silence_s: float) -> HttpStream:
        """Open a watch; its reads fail after ``silence_s`` without a byte. Raises KubeError(API_DOWN)."""
        deadline = time.monotonic() + order.timeout_s
        try:
            connection = self._opened(order, deadline, refused=False)
            if connection.status == HTTPStatus.UNAUTHORIZED:
                connection.close()
                connection = self._opened(order, deadline, refused=True)
        except OSError as error:
            KUBE_COUNTS.request(_WATCH, 0)
            raise down(order, _words(error)) from error
        KUBE_COUNTS.request(_WATCH, connection.status)
        return HttpStream(connection, order, silence_s)

    def close(self) -> None:
        """Close the idle connections."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _opened(self, order: HttpOrder, deadline: float, *, refused: bool) -> ClientConnection:
        connection = _connected(self._access, deadline)
        try:
            connection.send(self._request(order, refused=refused), deadline)
            connection.read_head(deadline)
        except BaseException:
            connection.close()
            raise
        return connection

    def _attempts(self, order: HttpOrder, deadline: float, *, refused: bool) -> HttpAnswer:
        """Make a call; repeat it on a new connection if an idle connection turns out to be closed.

        Args:
            refused: True if the API server has refused the last credential, so that a new one is needed.
        """
        connection = self._take()
        try:
            if connection is not None:
                try:
                    return self._attempt(connection, order, deadline, refused=refused)
                except TimeoutError:
                    raise
                except OSError:
                    if not order.repeatable:
                        raise
            return self._attempt(_connected(self._access, deadline), order, deadline, refused=refused)
        except OSError as error:
            raise down(order, _words(error)) from error

    def _attempt(self, connection: ClientConnection, order: HttpOrder, deadline: float, *, refused: bool) -> HttpAnswer:
        try:
            body = connection.ask(self._request(order, refused=refused), deadline, bytes_max=order.bytes_max)
        except TooLargeError as error:
            connection.close()
            raise AnswerTooLarge(f"{_asked(order)}: {error}") from None
        except BaseException:
            connection.close()
            raise
        answer = HttpAnswer(status=connection.status, retry_after_s=_retry_after_s(connection), body=body)
        if connection.reusable:
            self._put_back(connection)
        else:
            connection.close()
        return answer

    def _put_back(self, connection: ClientConnection) -> None:
        """Keep the connection for the next call, and close those that have been idle for too long."""
        now_s = connection.idle_since = time.monotonic()
        with self._lock:
            self._idle.append(connection)  # oldest first
            fresh = next(n for n, one in enumerate(self._idle) if now_s - one.idle_since < _IDLE_S)
            old, self._idle = self._idle[:fresh], self._idle[fresh:]
        for one in old:
            one.close()

    def _request(self, order: HttpOrder, *, refused: bool) -> bytes:
        headers = self._common
        if header := self._access.authorization(refused):
            if not (header.isascii() and header.isprintable()):
                raise down(order, "the credential has characters that are not printable ASCII")
            headers = {**headers, "Authorization": header}
        target = f"{self._access.prefix}{order.target}"
        return write_request(order.method, target, headers, order.body or b"", content_type=order.content_type)

    def _take(self) -> ClientConnection | None:
        """Return the most recently used idle connection, or None; close idle connections that are too old.

        The most recent one is used so that connections which are not needed any more become old and are closed.
        """
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection = self._idle.pop()
            if time.monotonic() - connection.idle_since < _IDLE_S and connection.quiet():
                return connection
            connection.close()


class HttpStream:
    """Body of a watch, read as it arrives."""

    def __init__(self, connection: ClientConnection, order: HttpOrder, silence_s: float) -> None:
        self._connection, self._order, self._silence_s = connection, order, silence_s
        self._closed = False
        self.status = connection.status
        self.retry_after_s = _retry_after_s(connection)

    def read(self) -> bytes:
        """Return the next bytes; b"" at the end. Raises KubeError(API_DOWN) if the connection fails."""
        try:
            return self._connection.read(time.monotonic() + self._silence_s)
        except (OSError, ValueError) as error:
            if self._closed:
                return b""
            words = (
                f"received nothing for {self._silence_s:g} s, not even a bookmark"
                if isinstance(error, TimeoutError)
                else _words(error)
            )
            raise down(self._order, words) from error

    def close(self) -> None:
        """Shut the connection down from any thread; a reader that waits sees the end."""
        self._closed = True
        with suppress(OSError):
            self._connection.cut()

    def release(self) -> None:
        """Close the descriptor; called by the reader when it reads no more."""
        self.close()
        self._connection.close()


def down(order: HttpOrder, why: str) -> KubeError:
    """Return the error API_DOWN of a call without an answer; ``why`` is the cause."""
    return KubeError(f"{_asked(order)}: {why}", reason=Reason.API_DOWN)


def _asked(order: HttpOrder) -> str:
    return f"{order.method} {order.target.partition('?')[0]}"


def _connected(access: ApiAccess, deadline: float) -> ClientConnection:
    """Connect to the API server. The kernel's probes detect a dead peer within about 25 s, however long a read may wait."""
    line = connect(access.host, access.port, min(deadline, time.monotonic() + _CONNECT_S))
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10)
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 25_000)
    tls = None if access.tls is None else access.tls()
    return ClientConnection(secured(line, access.server_name or access.host, deadline, tls))


def _retry_after_s(connection: ClientConnection) -> float:
    stated = connection.headers.get("retry-after", "")
    return float(stated) if stated.isascii() and stated.isdigit() else 0.0


def _words(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return str(error) or type(error).__name__
