"""HTTP/1.1 on a TCP socket: a bounded number of connections, in all and of one address, none waited for for ever."""

from __future__ import annotations

import asyncio
import select
import socket
import ssl
from collections.abc import Sequence

import uvicorn

from calabash.api.gateway import GatewayLimits
from calabash.operations.turns import Turns
from calabash.seams.host.tcp_peers import local_uid
from calabash.seams.http11 import StrictProtocol
from calabash.server.connections import GatewayConnections
from calabash.server.guard import CONNECTION, PEER, Application

REQUEST_S = 10.0  # from the first byte of a request, or the answer to the one before, to the end of the next one's head
SEND_S = 10.0
HANDSHAKE_S = 5.0


class BoundedProtocol(StrictProtocol):
    """uvicorn's HTTP/1.1 within the bounds."""

    table: GatewayConnections  # set on a subclass, like the next ones
    turns: Turns
    proxies: frozenset[str]
    _patience: asyncio.TimerHandle | None = None
    _peer = ""
    _held_back = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        address = self.client[0] if self.client else ""
        self._peer = f"address {address}"
        if address not in self.proxies:
            uid = local_uid(transport.get_extra_info("socket"))
            self._peer = f"user {uid}" if uid is not None else self._peer
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
        """Take part of a request when it is the peer's turn; nothing more is read until then."""
        self.flow.pause_reading()
        self.turns.begin(self._peer, lambda: self._take(data))

    def _take(self, data: bytes) -> None:
        if not self.transport.is_closing():
            self.flow.resume_reading()
            super().data_received(data)

    def idle(self) -> bool:
        """Return True if no request is being answered, but for a refusal that is held back."""
        return self._held_back or self.cycle is None or self.cycle.response_complete or self.cycle.more_body

    def refused(self) -> bool:
        """Return True while the refusal of its credential is held back."""
        return self._held_back

    def hung_up(self) -> bool:
        """Return True if the client has hung up; found also while nothing is read."""
        if self.transport.is_closing():
            return True
        poll = select.poll()
        poll.register(self.transport.get_extra_info("socket").fileno(), select.POLLRDHUP)
        return bool(poll.poll(0))

    def drop(self) -> None:
        """Close the connection at once."""
        self.transport.abort()

    def prove(self, credential: str) -> None:
        """A request with that valid credential came."""
        self.table.prove(self, credential)

    async def hold_back(self, seconds: float) -> None:
        """Wait before a refused credential is answered; the connection may be closed meanwhile."""
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
    """The application whose answers are not waited for longer than ``SEND_S`` to be read."""

    def __init__(self, application: Application) -> None:
        self._application = application

    async def __call__(self, scope: object, receive: object, send: object) -> None:
        async def within(message: object) -> None:
            async with asyncio.timeout(SEND_S):
                await send(message)  # type: ignore[operator]

        try:
            await self._application(scope, receive, within)
        except TimeoutError:
            raise ConnectionAbortedError("an answer was not read") from None


def gateway_server(
    application: Application, limits: GatewayLimits, *, tls: ssl.SSLContext | None = None, proxies: Sequence[str] = ()
) -> uvicorn.Server:
    """A server for ``serve(sockets=...)``."""
    bounds = {
        "table": GatewayConnections(limits, unbounded=frozenset(f"address {proxy}" for proxy in proxies)),
        "turns": Turns(),
        "proxies": frozenset(proxies),
    }
    config = uvicorn.Config(
        _Sending(application),
        http=type("GatewayProtocol", (BoundedProtocol,), bounds),
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
    return _GatewayServer(config)


class _GatewayServer(uvicorn.Server):
    """uvicorn's server, which does not wait long for a TLS handshake."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        config, loop = self.config, asyncio.get_running_loop()
        await self.lifespan.startup()

        def protocol() -> asyncio.Protocol:
            made = config.http_protocol_class
            return made(config=config, server_state=self.server_state, app_state={})  # type: ignore[call-arg]

        self.servers = [
            await loop.create_server(
                protocol,
                sock=listener,
                ssl=config.ssl,
                backlog=config.backlog,
                ssl_handshake_timeout=HANDSHAKE_S if config.ssl else None,
            )
            for listener in sockets or []
        ]
        self.started = True


def tls_context(certificate: str, key: str) -> ssl.SSLContext:
    """A server's context. Raises OSError, ssl.SSLError for files that are none."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificate, key or None)
    return context


def adopted(descriptor: int) -> socket.socket:
    """The listening socket that came as a descriptor."""
    listener = socket.socket(fileno=descriptor)
    listener.setblocking(False)
    return listener
