"""HTTP server of the page that Prometheus scrapes, ``GET /metrics``, and of ``/healthz``.

Every wait has a timeout, and the number of connections is small. A scraper sends a bearer token if the settings require
one. HTTP is parsed by the library h11; a connection serves one request.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import signal
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field

import h11

from calabash.adapters.exposition import CONTENT_TYPE
from calabash.adapters.host.tcp_peers import local_peer
from calabash.exporter.page import MetricsPage
from calabash.model.errors import CalabashError, Reason
from calabash.transport.connections import Activity, Connection, Connections
from calabash.transport.listening import Acceptor, streams

CONNECTIONS_MAX = 32
PER_PEER_MAX = 16
REQUEST_S = 5.0
REPLY_S = 30.0
HEAD_BYTES_MAX = 16 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """Address to listen on and the conditions for access.

    Args:
        host: address to listen on.
        port: TCP port; 0 for any free port.
        token: bearer token that clients must send; "" permits every client.
        tls: TLS context; None for plain HTTP.
    """

    host: str
    port: int
    token: str = field(default="", repr=False)
    tls: ssl.SSLContext | None = None


class MetricsServer:
    """HTTP server of a page of metrics, between :meth:`start` and :meth:`stop`."""

    def __init__(self, page: MetricsPage, listening: Listening) -> None:
        self._page = page
        self._listening = listening
        self._connections = Connections(most=CONNECTIONS_MAX, per_peer=PER_PEER_MAX)
        self._listener: socket.socket | None = None
        self._acceptor: Acceptor | None = None

    async def start(self) -> tuple[str, int]:
        """Listen; return the address and the port. Raises CalabashError if the port is in use or not permitted."""
        where = self._listening
        try:
            self._listener = _listen(where.host, where.port)
        except OSError as error:
            raise CalabashError(
                f"{where.host}:{where.port} cannot be listened on: {error.strerror or error}",
                reason=Reason.CONFLICT,
                hint="choose another with --listen HOST:PORT",
            ) from None
        handle = streams(self._serve, self._connections, context=lambda: where.tls, limit=HEAD_BYTES_MAX)
        self._acceptor = Acceptor(self._listener, handle, self._connections, peer=local_peer)
        self._acceptor.start()
        host, port = self._listener.getsockname()[:2]
        return str(host), int(port)

    async def stop(self) -> None:
        """Stop accepting connections, and close the port."""
        if self._acceptor is not None and self._listener is not None:
            self._acceptor.close()
            await self._acceptor.wait_closed()
            self._listener.close()

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, open_connection: Connection
    ) -> None:
        with contextlib.suppress(h11.RemoteProtocolError):
            async with asyncio.timeout(REQUEST_S):
                connection, request = await _request(reader)
            self._connections.set_activity(open_connection, Activity.BUSY)
            status, headers, body = await self._answer(request)
            async with asyncio.timeout(REPLY_S):
                await _reply(writer, connection, status, headers, body)

    async def _answer(self, request: h11.Request) -> tuple[int, list[tuple[str, str]], bytes]:
        headers = {bytes(name).lower(): bytes(value) for name, value in request.headers}
        path = bytes(request.target).partition(b"?")[0]
        if path == b"/healthz":
            return 200, [("Content-Type", "text/plain")], b"ok\n"
        if not self._permitted(headers.get(b"authorization", b"")):
            return 401, [("WWW-Authenticate", "Bearer")], b"a token is needed\n"
        if path != b"/metrics":
            return 404, [("Content-Type", "text/plain")], b"see /metrics\n"
        if bytes(request.method) != b"GET":
            return 405, [("Allow", "GET")], b""
        return 200, [("Content-Type", CONTENT_TYPE)], await asyncio.to_thread(self._page.text)

    def _permitted(self, shown: bytes) -> bool:
        token = self._listening.token
        return not token or hmac.compare_digest(shown, b"Bearer " + token.encode())


async def _request(reader: asyncio.StreamReader) -> tuple[h11.Connection, h11.Request]:
    """Read the head of one request; a body is not read.

    Raises:
        EOFError: if the client closes the connection before the head is complete.
        h11.RemoteProtocolError: if the request is not valid HTTP.
    """
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX)
    while True:
        event = connection.next_event()
        if isinstance(event, h11.Request):
            return connection, event
        if event is not h11.NEED_DATA:
            raise EOFError
        connection.receive_data(await reader.read(HEAD_BYTES_MAX))


async def _reply(
    writer: asyncio.StreamWriter,
    connection: h11.Connection,
    status: int,
    headers: list[tuple[str, str]],
    body: bytes,
) -> None:
    headers = [*headers, ("Content-Length", str(len(body))), ("Connection", "close"), ("Cache-Control", "no-store")]
    for event in (h11.Response(status_code=status, headers=headers), h11.Data(data=body), h11.EndOfMessage()):
        writer.write(connection.send(event) or b"")
    await writer.drain()
    writer.close()
    await writer.wait_closed()


async def serve_until_told(page: MetricsPage, listening: Listening, *, ready: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT; call ``ready`` with HOST:PORT once it listens."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    server = MetricsServer(page, listening)
    host, port = await server.start()
    try:
        ready(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        await stop.wait()
    finally:
        await server.stop()


def _listen(host: str, port: int) -> socket.socket:
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    return socket.create_server(address[:2], family=family, backlog=64)
