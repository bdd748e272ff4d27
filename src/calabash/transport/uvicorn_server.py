"""HTTP/1.1 server of the programs that run ASGI applications: uvicorn, with limits on connections and on each wait.

The pool, the gateway and the remote-device server configure the two classes of this module with ``ServerOptions``; a
program that acts at the steps of a connection (to identify its peer, or to delay it) gives a ``ConnectionHandler`` for
each.

uvicorn answers invalid bytes with 400 while the application is still answering the previous request; the application's
reply then fails with an error whose report has all headers in it. An error while reading bytes leaves the connection
open. In both cases ``HttpConnection`` tells the application that its client has disconnected, and ends the connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from calabash.transport.connections import Activity, Connection, Connections
from calabash.transport.listening import HANDSHAKE_S, Acceptor, shut_down

HEAD_BYTES_MAX = 16 << 10
TICK_S = 1.0  # the resolution of the header Date

Application = Callable[[Any, Any, Any], Awaitable[None]]


class ConnectionHandler:
    """Steps of one connection at which a program may act. This class only continues with the next step."""

    def opened(self) -> None:
        """Handle a new connection; nothing is read before this call."""

    def received(self, data: bytes, handle: Callable[[bytes], None]) -> None:
        """Handle received bytes: call ``handle`` with them, now or later."""
        handle(data)

    def closed(self, end: Callable[[], None]) -> None:
        """Handle the end of the connection: call ``end``, now or later."""
        end()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Options of a server.

    Args:
        connections: table of the open connections, with their limits; None if the listeners limit them.
        handler: returns the handler of a new connection.
        tls: TLS context; None for plain HTTP. A connection is counted when it is accepted, before its handshake.
        handshake_s: longest duration of a TLS handshake in seconds.
        request_s: seconds for the head of a request, from the connection or from the previous reply.
        keep_alive_s: seconds until the first byte of another request.
        ending_s: seconds that running requests have at shutdown.
        date_header: True if replies have the header Date.
        requests_max: number of connections or running requests above which a request is answered 503; None for no
            limit.
        before_shutdown: called at shutdown, before the server waits for running requests.
    """

    connections: Connections | None = None
    handler: Callable[[HttpConnection], ConnectionHandler] = lambda _: ConnectionHandler()
    tls: ssl.SSLContext | None = None
    handshake_s: float = HANDSHAKE_S
    request_s: float = 10.0
    keep_alive_s: int = 5
    ending_s: int = 2
    date_header: bool = False
    requests_max: int | None = None
    before_shutdown: Callable[[], None] = lambda: None


class HttpConnection(H11Protocol):
    """uvicorn's protocol object of one connection.

    It closes the connection at the first malformed request, and if the head of a request does not arrive in time.

    Args:
        server: the server.
        counted: entry of the connection in the table of connections; None if the connection is not counted there.
        counts: True if the connection adds itself to the table of connections as soon as it is established.
        state: state of the connection, which each request has in its scope.
    """

    def __init__(
        self,
        server: HttpServer,
        *,
        counted: Connection | None = None,
        counts: bool = False,
        state: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(config=server.config, server_state=server.server_state, app_state=dict(state or {}))
        self._options = server.options
        self._counted = counted
        self._counts = counts
        self._handler = ConnectionHandler()
        self._waiting: asyncio.TimerHandle | None = None

    @property
    def raw_socket(self) -> socket.socket:
        """Socket of the connection."""
        found: socket.socket = self.transport.get_extra_info("socket")
        return found

    @property
    def peer(self) -> str:
        """Peer for which the connection counts; "" if it is not counted."""
        return "" if self._counted is None else self._counted.peer

    def hung_up(self) -> bool:
        """Return True if the client has disconnected; works while reading is paused.

        Over TCP a client that sends no more has disconnected. On a Unix socket it may still read its reply.
        """
        if self.transport.is_closing():
            return True
        poll = select.poll()
        poll.register(self.raw_socket.fileno(), 0 if self.raw_socket.family == socket.AF_UNIX else select.POLLRDHUP)
        return any(event & (select.POLLHUP | select.POLLRDHUP) for _, event in poll.poll(0))

    def drop(self) -> None:
        """Drop the connection and its request without a reply."""
        if self.cycle is not None:
            self.cycle.disconnected = True
        self.abort()

    def abort(self) -> None:
        """Close the connection at once and discard unsent data."""
        self.transport.abort()

    def unsent_bytes(self) -> int:
        return 0 if self.transport.is_closing() else self.transport.get_write_buffer_size()

    def prove(self, credential: str) -> None:
        """Count the connection for a valid credential instead of its peer from now on."""
        if self._options.connections is not None and self._counted is not None:
            self._options.connections.prove(self._counted, credential)

    def set_refused(self, *, refused: bool) -> None:
        """Note that the reply to a refused credential is delayed; meanwhile the connection is the first to be closed."""
        self._set_activity(Activity.REFUSED if refused else Activity.BUSY)

    # ---- called by asyncio and uvicorn ------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        table = self._options.connections
        if self._counts and table is not None:
            self._counted = table.accept(self.raw_socket, self.client[0] if self.client else "", self.drop)
            if self._counted is None:
                transport.abort()
                return
        elif self._counted is not None and table is not None:
            table.set_close(self._counted, self.drop)
        self._handler = self._options.handler(self)
        self._wait_for_request()
        self._handler.opened()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        if self._options.connections is not None and self._counted is not None:
            self._options.connections.ended(self._counted)
        end = super().connection_lost
        self._handler.closed(lambda: end(exc))

    def data_received(self, data: bytes) -> None:
        self._handler.received(data, super().data_received)

    def handle_events(self) -> None:
        """Process the received bytes. Never raises."""
        try:
            super().handle_events()
        except h11.ProtocolError:
            self._end_request()
            self.transport.abort()
        if self._answering():
            self._set_activity(Activity.ASKING if self.cycle.more_body else Activity.BUSY)

    def send_400_response(self, msg: str) -> None:
        """Refuse a malformed request, if no reply has begun, and end the connection."""
        self._end_request()
        if self.conn.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            super().send_400_response(msg)
        else:
            self.transport.abort()

    def on_response_complete(self) -> None:
        self._set_activity(Activity.IDLE)
        super().on_response_complete()
        self._wait_for_request()

    # ---- inside -----------------------------------------------------------------------------------------------------

    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _set_activity(self, activity: Activity) -> None:
        """Report the activity to the table of connections if it has changed.

        More bytes of the same request are no change, so its age counts from the first byte.
        """
        table, counted = self._options.connections, self._counted
        if table is not None and counted is not None and counted.activity is not activity:
            table.set_activity(counted, activity)

    def _end_request(self) -> None:
        """Report to the application that the client of the request being answered has disconnected; drop its reply."""
        if self._answering():
            self.cycle.disconnected = True
            self.cycle.message_event.set()

    def _wait_for_request(self) -> None:
        self._stop_waiting()
        self._waiting = self.loop.call_later(self._options.request_s, self._give_up)

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _give_up(self) -> None:
        if not self._answering():  # no complete request head so far
            self.transport.abort()


class HttpServer(uvicorn.Server):
    """uvicorn's server with the limits of ``ServerOptions``.

    Its main loop wakes up once per second. The main loop of uvicorn wakes up ten times per second, also in an idle
    pool.

    Either ``serve`` or ``run`` listens until ``stop``, or the program accepts connections itself and passes them to
    ``serve_connection``.
    """

    def __init__(self, application: Application, options: ServerOptions) -> None:
        self.options = options
        self._stopping = False
        self._exits: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        super().__init__(
            uvicorn.Config(
                application,
                http=H11Protocol,
                ws="none",
                lifespan="off",
                loop="asyncio",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                date_header=options.date_header,
                h11_max_incomplete_event_size=HEAD_BYTES_MAX,
                limit_concurrency=options.requests_max,
                timeout_keep_alive=options.keep_alive_s,
                timeout_graceful_shutdown=options.ending_s,
                backlog=1024,
            )
        )
        self.config.load()

    @property
    def should_exit(self) -> bool:
        return self._stopping

    @should_exit.setter
    def should_exit(self, value: bool) -> None:
        self._stopping = value
        if value and self._loop is not None and self._exits is not None:
            self._loop.call_soon_threadsafe(self._exits.set)  # also called by signal handlers

    def stop(self) -> None:
        """Make ``serve`` or ``run`` return, also if it has not begun."""
        self.should_exit = True

    def uncounted(self, *, state: Mapping[str, object]) -> HttpConnection:
        """Return the protocol object of a new connection that no limit of the table of connections applies to."""
        return HttpConnection(self, state=state)

    async def serve_connection(self, accepted: socket.socket) -> None:
        """Serve an accepted connection; return when its TLS handshake is complete, or the connection closed."""
        table = self.options.connections
        assert table is not None
        try:
            counted = table.accept(accepted, str(accepted.getpeername()[0]), lambda: shut_down(accepted))
        except OSError:  # the client has disconnected
            counted = None
        if counted is None:
            accepted.close()
        else:
            await self._serve_counted(accepted, counted)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await self.lifespan.startup()
        self.servers = [await self._listen(listener) for listener in sockets or []]  # type: ignore[misc]
        self.started = True

    async def main_loop(self) -> None:
        self._exits, self._loop = asyncio.Event(), asyncio.get_running_loop()
        while not await self.on_tick(0):  # sets the header Date
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._exits.wait(), TICK_S)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.options.before_shutdown()
        await super().shutdown(sockets)

    async def _listen(self, listener: socket.socket) -> asyncio.Server | Acceptor:
        """Accept the connections of a listener.

        asyncio's own server reports a TLS connection only after its handshake, so unfinished handshakes would not be
        counted.
        """
        table = self.options.connections
        if self.options.tls is None or table is None:
            return await asyncio.get_running_loop().create_server(
                lambda: HttpConnection(self, counts=True),
                sock=listener,
                ssl=self.options.tls,
                backlog=self.config.backlog,
            )
        listener.listen(self.config.backlog)
        acceptor = Acceptor(listener, self._serve_counted, table)
        acceptor.start()
        return acceptor

    async def _serve_counted(self, accepted: socket.socket, counted: Connection) -> None:
        table = self.options.connections
        assert table is not None
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: HttpConnection(self, counted=counted),
                accepted,
                ssl=self.options.tls,
                ssl_handshake_timeout=self.options.handshake_s if self.options.tls is not None else None,
            )
        except (OSError, TimeoutError):  # the handshake failed, timed out, or was closed for another connection
            table.ended(counted)
            accepted.close()
        except asyncio.CancelledError:
            table.ended(counted)
            shut_down(accepted)  # cancelling the handshake would leave the socket open
            raise
