"""HTTP/1.1 server on Unix sockets for untrusted local clients.

A client is identified by the kernel's peer credentials, and every wait for a client has a time limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import resource
import socket
import struct
import sys
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any

from calabash.adapters.host.failures import EXHAUSTED
from calabash.adapters.host.processes import identify, peer_of
from calabash.adapters.host.readable import readable
from calabash.api import endpoints
from calabash.api.gateway import SESSION_HEADER
from calabash.model.errors import CalabashError, Reason
from calabash.platform.access.caller import Caller
from calabash.platform.http.per_user_pacing import CONNECTIONS_AT_ONCE, PerUserPacer
from calabash.platform.http.request_limits import REPLY_S, UserRequestLimits
from calabash.transport.uvicorn_server import ConnectionHandler, HttpConnection, HttpServer, ServerOptions

HEADER_S = 10.0
ACCEPTED_AT_ONCE = 16
DESCRIPTORS_KEPT = 128
_REFUSED_AT_ONCE = 256
_SO_PEERPIDFD = 77
_SCOPE_KEY = "calabash"
_CREDENTIALS = frozenset({b"authorization", SESSION_HEADER.encode()})

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Any, Any, Any], Awaitable[None]]


class Listener(socket.socket):
    """Unix socket that listens for connections, and refuses connections of users who have too many.

    A connection beyond the user's limit is answered 429 and closed here, which costs a hundredth of a served connection. At
    most ``ACCEPTED_AT_ONCE`` connections are accepted in a row, so that many new connections do not delay requests.

    ``keep_descriptors`` reserves the highest descriptor numbers of the process for files that running requests open.
    The kernel gives a new connection the smallest free number. If this number is reserved, all others are in use; the
    connection is then answered 503 and closed. If no number is free at all, a spare descriptor, which is always open, is
    closed, and the connection is accepted in its place and refused.

    Args:
        fairness: the limits of connections of each user.
    """

    def __init__(self, fairness: UserRequestLimits) -> None:
        super().__init__(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self._fairness = fairness
        self._in_a_row = 0
        self._spare = -1
        self._numbers_end = sys.maxsize

    def keep_descriptors(self, kept: int) -> None:
        """Reserve ``kept`` descriptors of this process for other uses than connections, and open the spare descriptor.

        If no descriptor is free, the spare one is closed, so that a connection can be accepted and refused.
        """
        self._numbers_end = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - kept
        self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        if self._spare >= 0:
            os.close(self._spare)
            self._spare = -1
        super().close()

    def accept(self) -> tuple[socket.socket, Any]:
        if self._in_a_row >= ACCEPTED_AT_ONCE:
            self._in_a_row = 0
            raise BlockingIOError
        for _ in range(_REFUSED_AT_ONCE):
            try:
                connection, address = super().accept()
            except BlockingIOError:
                self._in_a_row = 0
                raise
            except OSError as error:
                if error.errno not in EXHAUSTED or not self._refuse_one():
                    raise
                continue
            if connection.fileno() >= self._numbers_end:
                _hang_up(connection, _OVERLOADED)
            elif self._fairness.connect(peer_of(connection).uid):
                self._in_a_row += 1
                return connection, address
            else:
                _hang_up(connection, _TOO_MANY)
        raise BlockingIOError

    def _refuse_one(self) -> bool:
        """Close the spare descriptor, accept one connection with its number and refuse it, and open the spare again.

        Return False if the spare descriptor is not open.
        """
        if self._spare < 0:
            return False
        os.close(self._spare)
        self._spare = -1
        try:
            connection, _ = super().accept()
            _hang_up(connection, _OVERLOADED)
        finally:
            with contextlib.suppress(OSError):  # another thread took the number; no spare until keep_descriptors
                self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        return True


def _refusal(status: str, reason: Reason, message: str, hint: str) -> bytes:
    body = json.dumps({"reason": reason, "message": message, "hint": hint})
    head = f"HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {len(body)}\r\n"
    return f"{head}Content-Type: application/json\r\n\r\n{body}".encode()


_TOO_MANY = _refusal(
    "429 Too Many Requests",
    Reason.USER_LIMIT,
    "this user has too many connections to the pool",
    "close some; an administrator may raise `connections` in pool.toml",
)
_OVERLOADED = _refusal(
    "503 Service Unavailable",
    Reason.OVERLOADED,
    "the pool has no descriptors left for another connection",
    "ask again later; an administrator may raise the limit of open files of the pool",
)


def _hang_up(connection: socket.socket, answer: bytes) -> None:
    try:
        connection.send(answer, socket.MSG_DONTWAIT)
    except OSError:
        pass
    finally:
        connection.close()


class PoolConnection(ConnectionHandler):
    """Connection of the pool: identifies the caller before the first byte is read, and opens and closes when the pacer allows.

    Args:
        connection: the connection.
        fairness: limits of each user.
        pacer: limits how many connections of one user open or close at once.
        token_socket: path of the socket whose requests need a token.
    """

    def __init__(
        self, connection: HttpConnection, fairness: UserRequestLimits, pacer: PerUserPacer, token_socket: str
    ) -> None:
        self._connection = connection
        self._fairness = fairness
        self._pacer = pacer
        self._uid = peer_of(connection.raw_socket).uid
        self.caller: Caller | None = None
        self.token_required = connection.raw_socket.getsockname() == token_socket
        self.hung_up, self.drop, self.abort = connection.hung_up, connection.drop, connection.abort
        self.unsent_bytes = connection.unsent_bytes

    def opened(self) -> None:
        # Older Pythons begin to read after this call whatever it does, so reading is paused right after it, before the
        # first byte is read.
        self._connection.loop.call_soon(self._hold)
        self._pacer.begin(self._uid, self._begin)

    def closed(self, end: Callable[[], None]) -> None:
        def end_now() -> None:
            end()
            self._fairness.disconnect(self._uid)

        self._pacer.begin(self._uid, end_now)

    def _hold(self) -> None:
        if self.caller is None:
            self._connection.transport.pause_reading()

    def _begin(self) -> None:
        connection = self._connection
        if connection.transport.is_closing():
            return
        try:
            self.caller = read_caller(connection.raw_socket)
        except CalabashError:  # out of descriptors: the requesting process cannot be identified
            connection.transport.write(_OVERLOADED)
            connection.transport.close()
            return
        connection.client = (f"{self.caller.peer.uid}:{self.caller.peer.gid}", self.caller.peer.pid)
        connection.app_state[_SCOPE_KEY] = self
        connection.transport.resume_reading()


def connection_of(scope: Any) -> PoolConnection:
    """Return the connection of a request."""
    found: PoolConnection = scope["state"][_SCOPE_KEY]
    return found


def read_caller(connection: socket.socket) -> Caller:
    """Return the peer of a connection and its process.

    The process is None if it has ended. A pidfd of the peer detects this even if another process has got the PID.
    """
    peer = peer_of(connection)
    process = identify(peer.pid)
    try:
        raw = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD, struct.calcsize("i"))
    except OSError:  # kernel without SO_PEERPIDFD: processes are compared by start time only
        return Caller(peer=peer, process=process)
    (descriptor,) = struct.unpack("i", raw)
    try:
        return Caller(
            peer=peer, process=None if readable(descriptor, 0) else process
        )  # readable: the process has ended
    finally:
        os.close(descriptor)


class LimitedApplication:
    """ASGI middleware that limits each user's requests to an application, and delays those beyond the user's rate."""

    def __init__(self, application: Application, fairness: UserRequestLimits, pacer: PerUserPacer) -> None:
        self._application = application
        self._fairness = fairness
        self._pacer = pacer

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        connection = connection_of(scope)
        assert connection.caller is not None
        uid: int | str = connection.caller.peer.uid
        if connection.token_required:  # the gateway, which serves many users, limits each token's rate
            uid = _shown_token(scope)
        else:
            admitted = await self._fairness.admit(connection.caller.peer.uid, hung_up=connection.hung_up)
            await self._pacer.wait(connection.caller.peer.uid, reads=scope["method"] == "GET")
            if not admitted or connection.hung_up():
                connection.drop()
                return

        async def send_read(message: Message) -> None:
            """Send a message; abort the connection if the client does not read it within REPLY_S seconds."""
            try:
                await asyncio.wait_for(send(message), REPLY_S)
            except TimeoutError:
                connection.abort()

        if scope["method"] == "GET" and scope["path"] != endpoints.LIST_CHANGES.path:  # other replies may be large
            async with self._fairness.reply(uid):
                await self._application(scope, receive, send_read)
                await self._until_read(connection)
        else:
            await self._application(scope, receive, send_read)

    async def _until_read(self, connection: PoolConnection) -> None:
        """Wait until the reply is in the kernel's buffer; abort the connection after REPLY_S seconds."""
        deadline = asyncio.get_running_loop().time() + REPLY_S
        while connection.unsent_bytes():
            if asyncio.get_running_loop().time() > deadline:
                connection.abort()
                return
            await asyncio.sleep(0.02)


def _shown_token(scope: Any) -> str:
    """Return a name for the credential that a request shows, not the credential itself."""
    shown = b" ".join(value for name, value in scope["headers"] if name in _CREDENTIALS)
    return "token " + hashlib.sha256(shown).hexdigest()


def descriptors_kept() -> int:
    """Return the number of descriptors that are not used for connections: at most a quarter of the process's limit."""
    return min(DESCRIPTORS_KEPT, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)


class Server:
    """HTTP server of one pool; runs an application on its listeners until ``stop`` or a signal.

    Args:
        token_socket: path of the listener whose requests need a token.
        ending: called when the server begins to end, so that waiting requests are answered.
    """

    def __init__(
        self,
        listeners: Sequence[Listener],
        fairness: UserRequestLimits,
        *,
        token_socket: str = "",
        ending: Callable[[], None] = lambda: None,
    ) -> None:
        pacer = PerUserPacer(at_once=CONNECTIONS_AT_ONCE)
        self._listeners = listeners
        self._fairness = fairness
        self._options = ServerOptions(
            handler=lambda connection: PoolConnection(connection, fairness, pacer, token_socket),
            request_s=HEADER_S,
            date_header=True,
            before_shutdown=ending,
        )
        self._server: HttpServer | None = None
        self._stopped = False
        for listener in listeners:
            listener.keep_descriptors(descriptors_kept())

    def run(self, application: Application) -> None:
        self._server = HttpServer(LimitedApplication(application, self._fairness, PerUserPacer()), self._options)
        if self._stopped:
            self._server.stop()
        self._server.run(sockets=list(self._listeners))

    def stop(self) -> None:
        """Make ``run`` return, also if it has not begun."""
        self._stopped = True
        if self._server is not None:
            self._server.stop()
