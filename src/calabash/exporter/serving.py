"""HTTP server of the page that Prometheus scrapes, ``GET /metrics``, and of ``/healthz``.

Every wait has a timeout, and the number of connections is small. A scraper sends a bearer token if the settings require
one. A connection serves one request.
"""

from __future__ import annotations

import asyncio
import hmac
import signal
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from http import HTTPStatus

from calabash.adapters.exposition import CONTENT_TYPE
from calabash.adapters.host.tcp_peers import local_peer
from calabash.exporter.page import MetricsPage
from calabash.model.errors import CalabashError, Reason
from calabash.transport.connections import Connections
from calabash.transport.http1 import Bounds, Conversation, HttpQuestion, HttpReply
from calabash.transport.listening import Acceptor, streams

CONNECTIONS_MAX = 32
PER_PEER_MAX = 16
TEXT = "text/plain"
BOUNDS = Bounds(body_bytes=0, connections=CONNECTIONS_MAX, per_peer=PER_PEER_MAX, write_s=30.0)


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
        self._connections = Connections(most=BOUNDS.connections, per_peer=BOUNDS.per_peer)
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
        conversation = Conversation(connections=self._connections, bounds=BOUNDS, answer=self._reply)
        handle = streams(conversation.run, self._connections, context=lambda: where.tls, limit=BOUNDS.head_bytes)
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

    async def _reply(self, question: HttpQuestion, _: asyncio.StreamReader) -> HttpReply:
        reply = await self._answer(question)
        return replace(reply, headers=(*reply.headers, ("Cache-Control", "no-store")), closes=True)

    async def _answer(self, question: HttpQuestion) -> HttpReply:
        if question.path == "/healthz":
            return HttpReply(body=b"ok\n", content_type=TEXT)
        if not self._permitted(question.authorization):
            wanted = (("WWW-Authenticate", "Bearer"),)
            return HttpReply(
                status=HTTPStatus.UNAUTHORIZED, body=b"a token is needed\n", content_type=TEXT, headers=wanted
            )
        if question.path != "/metrics":
            return HttpReply(status=HTTPStatus.NOT_FOUND, body=b"see /metrics\n", content_type=TEXT)
        if question.method != "GET":
            return HttpReply(status=HTTPStatus.METHOD_NOT_ALLOWED, content_type=TEXT, headers=(("Allow", "GET"),))
        return HttpReply(body=await asyncio.to_thread(self._page.text), content_type=CONTENT_TYPE)

    def _permitted(self, shown: str) -> bool:
        token = self._listening.token
        return not token or hmac.compare_digest(shown.encode("latin-1"), b"Bearer " + token.encode())


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
