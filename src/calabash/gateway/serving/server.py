"""HTTP/1.1 server of the gateway, with limits on the number of connections and on each wait.

A peer is a local user, identified by the kernel, or else an address. A connection counts for its peer until it carries a
request with a valid credential; then it counts for the credential. At most half of all connections are without one.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Sequence

from calabash.adapters.host.tcp_peers import local_peer
from calabash.api.gateway import GatewayLimits
from calabash.gateway.serving.request_guard import CONNECTION, PEER, Application
from calabash.platform.http.per_user_pacing import PerUserPacer
from calabash.transport.connections import Connections, peer_of
from calabash.transport.uvicorn_server import ConnectionHandler, HttpConnection, HttpServer, ServerOptions

REQUEST_S = 10.0  # for the head of a request, from the connection or from the previous reply
SEND_S = 10.0
HANDSHAKE_S = 5.0


class GatewayConnection(ConnectionHandler):
    """Connection of the gateway: handles received data when the pacer allows it for the peer, and reads no more until then.

    Args:
        connection: the connection.
        pacer: limits the time that the requests of one user take on the event loop.
        proxies: addresses of trusted proxies, whose connections carry requests of many peers.
    """

    def __init__(self, connection: HttpConnection, pacer: PerUserPacer, proxies: frozenset[str]) -> None:
        self._connection = connection
        self._pacer = pacer
        self.hung_up, self.drop, self.prove = connection.hung_up, connection.drop, connection.prove
        address = connection.client[0] if connection.client else ""
        if address not in proxies:
            local_user = connection.peer != peer_of(address)
            connection.app_state[PEER] = connection.peer if local_user else f"address {address}"
        connection.app_state[CONNECTION] = self

    def received(self, data: bytes, handle: Callable[[bytes], None]) -> None:
        connection = self._connection

        def take() -> None:
            if not connection.transport.is_closing():
                connection.flow.resume_reading()
                handle(data)

        connection.flow.pause_reading()
        self._pacer.begin(connection.peer, take)

    async def hold_back(self, seconds: float) -> None:
        """Delay the reply to a refused credential; the connection counts as refused meanwhile."""
        self._connection.set_refused(refused=True)
        try:
            await asyncio.sleep(seconds)
        finally:
            self._connection.set_refused(refused=False)


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
) -> HttpServer:
    """Return a server with the gateway's limits; the caller starts it with ``serve(sockets=...)``.

    Args:
        application: the ASGI application.
        limits: limits of connections.
        tls: TLS context; None for plain HTTP.
        proxies: addresses of trusted proxies.
    """
    trusted, pacer = frozenset(proxies), PerUserPacer()

    def peer(connection: socket.socket, address: str) -> str:
        return address if address in trusted else local_peer(connection, address)

    options = ServerOptions(
        connections=Connections(
            most=limits.connections,
            per_peer=limits.connections_per_address,
            without_credential=max(1, limits.connections // 2),
            unbounded=frozenset(map(peer_of, trusted)),
            peer=peer,
        ),
        handler=lambda connection: GatewayConnection(connection, pacer, trusted),
        tls=tls,
        handshake_s=HANDSHAKE_S,
        request_s=REQUEST_S,
        keep_alive_s=int(REQUEST_S),
    )
    return HttpServer(_Sending(application), options)


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
