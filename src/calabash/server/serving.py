"""HTTP/1.1 on a TCP socket: a bounded number of connections, in all and of one address, none waited for for ever."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import Counter

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from calabash.api.gateway import GatewayLimits
from calabash.server.guard import Application

REQUEST_S = 10.0  # from the first byte of a request, or the answer to the one before, to the end of the next one's head
SEND_S = 10.0


class Doorkeeper:
    """How many connections there are, by address."""

    def __init__(self, limits: GatewayLimits) -> None:
        self._limits = limits
        self._by_address: Counter[str] = Counter()

    def enter(self, address: str) -> bool:
        """One more; False when it is one too many."""
        full = self._by_address.total() >= self._limits.connections
        if full or self._by_address[address] >= self._limits.connections_per_address:
            return False
        self._by_address[address] += 1
        return True

    def leave(self, address: str) -> None:
        """One less."""
        self._by_address[address] -= 1
        if self._by_address[address] <= 0:
            del self._by_address[address]


class BoundedProtocol(H11Protocol):
    """uvicorn's HTTP/1.1 within the bounds."""

    doorkeeper: Doorkeeper  # set on a subclass
    _patience: asyncio.TimerHandle | None = None
    _address: str | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        address = self.client[0] if self.client else ""
        if not self.doorkeeper.enter(address):
            transport.abort()
            return
        self._address = address
        self._wait_for_request()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._patience is not None:
            self._patience.cancel()
        if self._address is not None:
            self.doorkeeper.leave(self._address)
            self._address = None
        super().connection_lost(exc)

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
    application: Application, limits: GatewayLimits, *, tls: ssl.SSLContext | None = None
) -> uvicorn.Server:
    """A server for ``serve(sockets=...)``."""
    config = uvicorn.Config(
        _Sending(application),
        http=type("GatewayProtocol", (BoundedProtocol,), {"doorkeeper": Doorkeeper(limits)}),
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
    return uvicorn.Server(config)


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
