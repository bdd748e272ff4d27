"""The port that is scraped: ``GET /metrics`` and nothing else, every wait bounded, few connections at once.

A scraper shows a bearer token where one is asked for. The protocol is h11's; a connection serves one request.
"""

from __future__ import annotations

import asyncio
import hmac
import signal
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field

import h11

from calabash.exporter.exposition import CONTENT_TYPE
from calabash.exporter.page import MetricsPage
from calabash.model.errors import CalabashError, Reason

CONNECTIONS_MAX = 32
REQUEST_S = 5.0
REPLY_S = 30.0
HEAD_BYTES_MAX = 16 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """Where to listen, and who may read: whoever shows ``token``, everybody where it is empty."""

    host: str
    port: int
    token: str = field(default="", repr=False)
    tls: ssl.SSLContext | None = None


class MetricsServer:
    """Serves a page until it is cancelled."""

    def __init__(self, page: MetricsPage, listening: Listening) -> None:
        self._page = page
        self._listening = listening
        self._connections = 0

    async def start(self) -> asyncio.Server:
        """Raises CalabashError when the port is taken or not permitted."""
        where = self._listening
        try:
            return await asyncio.start_server(
                self._serve, where.host, where.port, limit=HEAD_BYTES_MAX, ssl=where.tls, backlog=64
            )
        except OSError as error:
            raise CalabashError(
                f"{where.host}:{where.port} cannot be listened on: {error.strerror or error}",
                reason=Reason.CONFLICT,
                hint="choose another with --listen HOST:PORT",
            ) from None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        try:
            if self._connections <= CONNECTIONS_MAX:
                async with asyncio.timeout(REQUEST_S):
                    connection, request = await _request(reader)
                status, headers, body = await self._answer(request)
                async with asyncio.timeout(REPLY_S):
                    await _reply(writer, connection, status, headers, body)
        except (TimeoutError, OSError, h11.RemoteProtocolError, EOFError):
            pass  # who does not ask, or does not read, gets nothing
        finally:
            self._connections -= 1
            writer.transport.abort()

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
    """The head of one request; a body is nobody's business here. Raises what ``_serve`` passes over."""
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
    """Serve until SIGTERM or SIGINT; ``ready`` is called with HOST:PORT when it listens."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    server = await MetricsServer(page, listening).start()
    async with server:
        host, port = server.sockets[0].getsockname()[:2]
        ready(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        await stop.wait()
