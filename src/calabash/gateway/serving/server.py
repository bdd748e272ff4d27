"""HTTP/1.1 server of the gateway, with limits on the number of connections and on each wait."""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import uvicorn

from calabash.adapters.host.tcp_peers import local_uid
from calabash.api.gateway import GatewayLimits
from calabash.gateway.serving.connections import GatewayConnections
from calabash.gateway.serving.request_guard import CONNECTION, PEER, Application
from calabash.platform.http.per_user_pacing import PerUserPacer
from calabash.transport.uvicorn_http11 import StrictProtocol

REQUEST_S = 10.0  # for the head of a request, from the connection or from the previous reply
SEND_S = 10.0
HANDSHAKE_S = 5.0
ACCEPT_AGAIN_S = 0.05
BACKLOG = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionBounds:
    """Objects that all connections of a gateway share.

    Args:
        table: table of connections.
        pacer: limits the time that the requests of one user take on the event loop.
        proxies: addresses of trusted proxies.
    """

    table: GatewayConnections
    pacer: PerUserPacer
    proxies: frozenset[str]

    def peer(self, connection: socket.socket, address: str) -> str:
        """Return the holder of a connection without a credential: a local user, or an address."""
        uid = None if address in self.proxies else local_uid(connection)
        return f"address {address}" if uid is None else f"user {uid}"


@dataclass(slots=True, eq=False)
class PendingHandshake:
    """Entry in the table of connections for a connection whose TLS handshake is not complete."""

    connection: socket.socket
    peer: str

    def idle(self) -> bool:
        """Return True: a pending handshake may be closed for other connections."""
        return True

    def refused(self) -> bool:
        """Return False: the client has shown no credential."""
        return False

    def drop(self) -> None:
        """Shut down the socket, which also ends the handshake. Cancelling the handshake would leave the socket open."""
        with contextlib.suppress(OSError):  # closed already
            self.connection.shutdown(socket.SHUT_RDWR)


class BoundedProtocol(StrictProtocol):
    """HTTP/1.1 protocol of uvicorn with the gateway's limits on connections, waits and time of the event loop."""

    bounds: ConnectionBounds  # set on a subclass
    handshake: PendingHandshake | None = None  # the completed handshake; None without TLS
    _patience: asyncio.TimerHandle | None = None
    _peer = ""
    _held_back = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.table, self.pacer = self.bounds.table, self.bounds.pacer
        address = self.client[0] if self.client else ""
        if self.handshake is not None:
            self.table.leave(self.handshake)
            self._peer = self.handshake.peer
        else:
            self._peer = self.bounds.peer(transport.get_extra_info("socket"), address)
        if address not in self.bounds.proxies:
            self.app_state = {**self.app_state, PEER: self._peer}
        self.app_state = {**self.app_state, CONNECTION: self}
        if not self.table.enter(self, self._peer):
            transport.abort()
            return
        self._wait_for_request()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._patience is not None:
            self._patience.cancel()
        self.table.leave(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Handle received data when the pacer allows it for this peer; no more data is read until then."""
        self.flow.pause_reading()
        self.pacer.begin(self._peer, lambda: self._take(data))

    def _take(self, data: bytes) -> None:
        if not self.transport.is_closing():
            self.flow.resume_reading()
            super().data_received(data)

    def idle(self) -> bool:
        """Return True if no request is being answered, except for a refusal that is delayed."""
        return self._held_back or self.cycle is None or self.cycle.response_complete or self.cycle.more_body

    def refused(self) -> bool:
        """Return True while the refusal of the connection's credential is delayed."""
        return self._held_back

    def hung_up(self) -> bool:
        """Return True if the client has disconnected, also while the connection is not read."""
        if self.transport.is_closing():
            return True
        poll = select.poll()
        poll.register(self.transport.get_extra_info("socket").fileno(), select.POLLRDHUP)
        return bool(poll.poll(0))

    def drop(self) -> None:
        """Close the connection at once."""
        self.transport.abort()

    def prove(self, credential: str) -> None:
        """Count the connection for a valid credential."""
        self.table.prove(self, credential)

    async def hold_back(self, seconds: float) -> None:
        """Delay the reply to a refused credential; the connection counts as idle meanwhile."""
        self._held_back = True
        try:
            await asyncio.sleep(seconds)
        finally:
            self._held_back = False

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._wait_for_request()

    def _wait_for_request(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
        self._patience = self.loop.call_later(REQUEST_S, self._give_up)

    def _give_up(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.abort()


class _Sending:
    """ASGI middleware that aborts a reply if the client does not read it for ``SEND_S``."""

    def __init__(self, application: Application) -> None:
        self._application = application

    async def __call__(self, scope: object, receive: object, send: object) -> None:
        async def within(message: object) -> None:
            async with asyncio.timeout(SEND_S):
                await send(message)  # type: ignore[operator]

        try:
            await self._application(scope, receive, within)
        except TimeoutError:
            raise ConnectionAbortedError("the client does not read its reply") from None


def gateway_server(
    application: Application, limits: GatewayLimits, *, tls: ssl.SSLContext | None = None, proxies: Sequence[str] = ()
) -> uvicorn.Server:
    """Return a server with the gateway's limits; the caller starts it with ``serve(sockets=...)``.

    Args:
        application: the ASGI application.
        limits: limits of connections.
        tls: TLS context; None for plain HTTP.
        proxies: addresses of trusted proxies.
    """
    table = GatewayConnections(limits, unbounded=frozenset(f"address {proxy}" for proxy in proxies))
    bounds = ConnectionBounds(table=table, pacer=PerUserPacer(), proxies=frozenset(proxies))
    config = uvicorn.Config(
        _Sending(application),
        http=type("GatewayProtocol", (BoundedProtocol,), {"bounds": bounds}),
        ws="none",
        lifespan="off",
        loop="asyncio",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        h11_max_incomplete_event_size=16 * 1024,
        timeout_keep_alive=int(REQUEST_S),
        timeout_graceful_shutdown=2,
    )
    config.load()
    config.ssl = tls
    return _GatewayServer(config, bounds)


class _GatewayServer(uvicorn.Server):
    """Server of uvicorn, except that a TLS connection is counted from the moment it is accepted."""

    def __init__(self, config: uvicorn.Config, bounds: ConnectionBounds) -> None:
        super().__init__(config)
        self._bounds = bounds

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        config, loop = self.config, asyncio.get_running_loop()
        await self.lifespan.startup()

        def protocol() -> BoundedProtocol:
            made = config.http_protocol_class
            return made(config=config, server_state=self.server_state, app_state={})  # type: ignore[return-value, call-arg]

        self.servers = [
            _TlsAcceptor(listener, config.ssl, protocol, self._bounds)  # type: ignore[misc]
            if config.ssl is not None
            else await loop.create_server(protocol, sock=listener, backlog=config.backlog)
            for listener in sockets or []
        ]
        self.started = True


class _TlsAcceptor:
    """Accepts TLS connections of a listener until it is closed.

    asyncio's own server reports a connection only after its handshake, so unfinished handshakes would not be counted.
    """

    def __init__(
        self,
        listener: socket.socket,
        context: ssl.SSLContext,
        protocol: Callable[[], BoundedProtocol],
        bounds: ConnectionBounds,
    ) -> None:
        self._listener, self._context, self._protocol, self._bounds = listener, context, protocol, bounds
        self._handshakes: set[asyncio.Task[None]] = set()
        listener.setblocking(False)
        listener.listen(BACKLOG)
        self._accepting = asyncio.ensure_future(self._accept())

    def close(self) -> None:
        """Stop accepting and cancel unfinished handshakes."""
        for task in (self._accepting, *self._handshakes):
            task.cancel()

    async def wait_closed(self) -> None:
        """Wait until all tasks have ended."""
        await asyncio.gather(self._accepting, *self._handshakes, return_exceptions=True)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, address = await loop.sock_accept(self._listener)
            except OSError:  # no descriptors left, or the client has disconnected
                await asyncio.sleep(ACCEPT_AGAIN_S)
                continue
            handshake = PendingHandshake(accepted, self._bounds.peer(accepted, str(address[0])))
            if self._bounds.table.enter(handshake, handshake.peer):
                task = loop.create_task(self._shake_hands(handshake))
                self._handshakes.add(task)
                task.add_done_callback(self._handshakes.discard)
            else:
                accepted.close()
            await asyncio.sleep(0)  # lets other tasks run between waiting connections

    async def _shake_hands(self, handshake: PendingHandshake) -> None:
        def completed() -> BoundedProtocol:
            made = self._protocol()
            made.handshake = handshake
            return made

        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                completed, handshake.connection, ssl=self._context, ssl_handshake_timeout=HANDSHAKE_S
            )
        except (OSError, TimeoutError):
            handshake.connection.close()  # the handshake failed, timed out, or was closed for another connection
        except asyncio.CancelledError:
            handshake.drop()
            raise
        finally:
            self._bounds.table.leave(handshake)


def tls_context(certificate: str, key: str) -> ssl.SSLContext:
    """Return the TLS context of the server. Raises OSError or ssl.SSLError if the files cannot be loaded."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificate, key or None)
    return context


def adopted(descriptor: int) -> socket.socket:
    """Return the listening socket of an inherited descriptor."""
    listener = socket.socket(fileno=descriptor)
    listener.setblocking(False)
    return listener
